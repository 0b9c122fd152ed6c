"""The page of papers: 41 of them, each with what it names; and every other method with its paper."""

import importlib.util
import re
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

import mmspec
from mmspec.cli.app import build
from mmspec.registry import MethodSpec, installed

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "papers.md").read_text()
METHODS: tuple[MethodSpec, ...] = installed().components("method")


def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("papers_of_the_site", ROOT / "docs" / "site" / "papers.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SITE = site()
ROWS: list[dict[str, str]] = SITE.rows(TEXT)


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_there_are_41_papers_and_none_twice() -> None:
    assert len({row["title"] for row in ROWS}) == len({row["paper"] for row in ROWS}) == len(ROWS) == 41


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["title"][:24])
def test_a_row_names_the_methods_of_its_paper_and_what_it_names_exists(row: dict[str, str]) -> None:
    ours, files = codes(row["ours"]), codes(row["files"])
    assert {method.name for method in METHODS if method.paper == row["paper"]} <= {*ours}
    assert files and all((ROOT / file).is_file() for file in files)
    for name in ours:
        assert exists(name), name


def exists(name: str) -> bool:
    """True for a method, a name of `mmspec`, and a command whose groups, options and module are there."""
    words = name.split()
    if words[:2] == ["python", "-m"]:
        return find_spec(words[2]) is not None and (ROOT / words[2].replace(".", "/") / words[3]).is_dir()
    if len(words) == 1:
        return name in {method.name for method in METHODS} or hasattr(mmspec, name.removeprefix("mmspec."))
    command: Any = typer.main.get_command(build())
    for word in words[1:]:
        if word.startswith("--"):
            assert word in {option for parameter in command.params for option in parameter.opts}
        elif "commands" in vars(command):
            command = command.commands[word]
    return True


def test_every_other_method_with_a_paper_is_in_the_second_table() -> None:
    assert SITE.filled(TEXT) == TEXT, "`make docs` writes it"


def test_readme_and_index_lead_to_the_page() -> None:
    assert "(docs/papers.md)" in (ROOT / "README.md").read_text()
    assert "(papers.md)" in (ROOT / "docs" / "index.md").read_text()
