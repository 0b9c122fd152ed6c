"""The glossary is short, and every name in it exists."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "glossary.md").read_text()
ROWS = [line.strip("| ").split(" | ") for line in TEXT.splitlines() if line.startswith("| ")][1:]
NAMES = sorted({name for row in ROWS for name in re.findall(r"`([^`]+)`", row[1])})


def found(name: str) -> Any:
    """A module below mmspec, or a member of one; an attribute that only instances have counts by its annotation."""
    parts = ["mmspec", *name.split(".")]
    for cut in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            value = getattr(value, part) if hasattr(value, part) else value.__annotations__[part]
        return value
    raise AssertionError(name)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_exists(name: str) -> None:
    found(name)


def test_it_is_short_and_every_word_has_a_name() -> None:
    assert len(TEXT.splitlines()) <= 60
    assert all(len(row) == 3 and re.search(r"`[\w.]+`", row[1]) for row in ROWS)
