"""Text and JSON of files: one printable line, within limits."""

from pathlib import Path

import pytest

from mmspec.registry.printable import QUOTED, shown
from mmspec.untrusted import read_json


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain – text", "plain – text"),
        ("two\r\n lines\t", "two lines"),
        ("\x1b[2J\x07\x00", r"\x1b[2J\x07\x00"),
        ("\u202eright to left", r"\u202eright to left"),
        ("\x9b31m\udc80", r"\x9b31m\udc80"),
        (7, "7"),
        ("", ""),
    ],
    ids=["plain", "lines", "controls", "direction", "halves", "number", "empty"],  # halves of a pair are no id
)
def test_one_printable_line(text: object, line: str) -> None:
    assert shown(text) == line and shown(text).isprintable()


def test_what_is_too_long_is_cut() -> None:
    assert shown("x" * 10**6) == "x" * (QUOTED - 1) + "…" and len(shown("\x1b" * 10**6)) == QUOTED
    assert shown("abcdef", 4) == "abc…"


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[1]", b"7", b"\xff", b"[" * 10**6, b'{"a":' * 10**6, b'{"a": 1}' + b" " * 99]
)
def test_json_that_is_no_object_is_refused(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(text)
    with pytest.raises(ValueError, match=r"x\.json cannot be read") as error:
        read_json(tmp_path / "x.json", most=100 if text.startswith(b'{"a": 1}') else 10**8)
    assert str(error.value).isprintable() and len(str(error.value)) < 900


def test_an_object_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": ["ä"]}', encoding="utf-8")
    assert read_json(tmp_path / "x.json") == {"a": ["ä"]}
    for place in (tmp_path, tmp_path / "nowhere.json"):
        with pytest.raises(ValueError, match="cannot be read"):
            read_json(place)
