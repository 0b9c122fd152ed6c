"""Files that are written whole reach the disk before they take their place; no other test waits for a disk."""

import os
from pathlib import Path

import pytest

from mmspec.files import save_text, save_whole


@pytest.fixture
def happened(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The numbers of what was synchronised, and `renamed`, in order."""
    seen: list[object] = []
    replace = os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: seen.append(os.fstat(handle).st_ino))
    monkeypatch.setattr(os, "replace", lambda *paths: (seen.append("renamed"), replace(*paths)))
    return seen


def test_a_file_then_its_name(tmp_path: Path, happened: list[object]) -> None:
    path = tmp_path / "text"
    save_text(path, "words")
    assert happened == [path.stat().st_ino, "renamed", tmp_path.stat().st_ino]


def test_all_files_of_a_folder(tmp_path: Path, happened: list[object]) -> None:
    def write(side: Path) -> None:
        (side / "inner").mkdir(parents=True)
        (side / "inner" / "one").write_text("1")
        (side / "two").write_text("2")

    path = tmp_path / "folder"
    save_whole(path, write)
    assert set(happened[:-2]) == {each.stat().st_ino for each in (path, *path.rglob("*"))}
    assert happened[-2:] == ["renamed", tmp_path.stat().st_ino]
