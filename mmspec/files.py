"""What mmspec keeps is written whole or not at all.

A file, or a folder, is made under a side name in the same folder, brought to the disk, and renamed. Whoever reads sees
the old one or the new one; where writing ends early (CTRL-C, a full disk, a mistake), the side file goes.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIDE = ".part"
"""Ends the stem of every side name; they begin with a dot."""


def save_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file or a folder.

    Args:
        path: What it is called in the end; what is there is replaced, and a file's permissions stay. A device or a
            pipe is written to as it is.
        write: Makes a file, or a folder, of the name that it is called with; its ending is that of `path`.

    Raises:
        OSError: It cannot be written there. `path` is as it was.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        write(path)
        return
    path = Path(os.path.realpath(path))  # a link goes on to be one
    side = _beside(path, SIDE)
    try:
        write(side)
        if path.is_file():
            shutil.copymode(path, side)
        for made in (*side.rglob("*"), side):
            _to_disk(made)
        _take_place(side, path)
        _to_disk(path.parent)
    except OSError as error:
        # A full disk names no file, and nobody knows the side name.
        if error.errno is not None and error.filename in (None, str(side)):
            error.filename = str(path)
        raise
    finally:
        _remove(side)


def save_text(path: Path, text: str) -> None:
    """Write a text, in UTF-8, as `save_whole` does."""
    save_whole(path, lambda side: side.write_text(text, encoding="utf-8"))


def remove_sides(folder: Path) -> None:
    """Remove what processes that were killed left unfinished in a folder; nobody may be writing there."""
    for side in folder.glob(f".*{SIDE}*"):
        _remove(side)


def _take_place(side: Path, path: Path) -> None:
    """Rename; a folder cannot be renamed onto another one that holds something, which so steps aside first."""
    if not path.is_dir():
        os.replace(side, path)
        return
    old = _beside(path, ".old" + SIDE)
    os.rename(path, old)
    try:
        os.rename(side, path)
    except BaseException:
        os.rename(old, path)
        raise
    _remove(old)


def _beside(path: Path, mark: str) -> Path:
    """A side name of this process's own: two that write the same file do not mix."""
    return path.with_name(f".{path.stem}.{os.getpid()}{mark}{path.suffix}")


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
