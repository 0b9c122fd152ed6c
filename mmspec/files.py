"""Files and folders are written whole or not at all.

A file or folder is written under a temporary name in the same folder, synchronised to the disk, and renamed. A reader
sees the old one or the new one; where writing fails (CTRL-C, a full disk, an error), the temporary file is removed.

A file that is named is replaced. A folder is replaced only if it is empty, or if `save_sealed` wrote it and nothing in
it was added, changed or removed since: so nobody else's work is lost with it.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIDE = ".part"  # mark in the temporary names, which begin with a dot
SEAL = ".written.json"  # the file in a folder that has the digests of all others
_NUMBER = re.compile(r"\(os error (\d+)\)")
"""The system's error in an error of a library that is written in Rust, as safetensors is."""
_TEMPORARY = re.compile(r"\..*\.\d+(\.old|\.mode)?\.part.*")


def save_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file or a folder; an existing one is replaced, and a file keeps its permissions. Where it cannot be
    written, `path` is as it was.

    `write` is called with a path of the same suffix, at which it creates the file or folder. New files have the
    permissions of the user's umask, also where a library makes them for their owner alone, as safetensors does. A
    device or a pipe is written to directly.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        write(path)
        return
    path = Path(os.path.realpath(path))  # a link stays a link, and what it points to is replaced
    side = _temporary(path, SIDE)
    try:
        write(side)
        usual = _usual_mode(path)
        for written in (*side.rglob("*"), side):
            if written.is_file() and not written.is_symlink():
                written.chmod(stat.S_IMODE(written.stat().st_mode) | usual)
        if path.is_file():
            shutil.copymode(path, side)
        for written in (*side.rglob("*"), side):
            _to_disk(written)
        _take_place(side, path)
        _to_disk(path.parent)
    except OSError as error:
        # The error of a full disk names no file, and the temporary name would tell users nothing.
        if error.errno is not None and error.filename in (None, str(side)):
            error.filename = str(path)
        raise
    except Exception as error:
        if number := _NUMBER.search(str(error)):
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
        raise
    finally:
        _remove(side)


def save_text(path: Path, text: str) -> None:
    """Write a text, in UTF-8, as `save_whole` does."""
    save_whole(path, lambda side: side.write_text(text, encoding="utf-8"))


def save_sealed(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a folder as `save_whole` does; a later call may replace it while it holds exactly what was written."""

    def sealed(side: Path) -> None:
        write(side)
        (side / SEAL).write_text(json.dumps(_held(side), indent=1) + "\n", encoding="utf-8")

    save_whole(path, sealed)


def foreign(folder: Path) -> list[str]:
    """The names in a folder that `save_sealed` did not leave as they are: added, changed or removed ones."""
    try:
        sealed = dict(json.loads((folder / SEAL).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # there is none, or it is somebody else's
        return sorted(path.name for path in folder.iterdir())
    held = _held(folder)
    return sorted(name for name in {**sealed, **held} if sealed.get(name) != held.get(name))


def remove_sides(folder: Path) -> None:
    """Remove the temporary files that killed processes left in a folder; no process may be writing there."""
    for side in folder.glob(f".*{SIDE}*"):
        if _TEMPORARY.fullmatch(side.name):
            _remove(side)


def _held(folder: Path) -> dict[str, str]:
    """The digest of every file in a folder, by its path there; links and folders have a word instead."""
    held = {}
    for path in sorted(folder.rglob("*")):
        what = "a folder" if path.is_dir() else "a device"
        if path.is_symlink():
            what = "a link"
        elif path.is_file():
            with path.open("rb") as opened:
                what = hashlib.file_digest(opened, "sha256").hexdigest()
        held[path.relative_to(folder).as_posix()] = what
    held.pop(SEAL, None)
    return held


def _usual_mode(path: Path) -> int:
    """The permissions of a new file beside `path`. To ask for the umask is to set it, for all threads."""
    probe = _temporary(path, ".mode" + SIDE)
    try:
        probe.touch()
        return stat.S_IMODE(probe.stat().st_mode)
    finally:
        _remove(probe)


def _take_place(side: Path, path: Path) -> None:
    """Rename `side` to `path`. A folder cannot replace one with contents, which is renamed first and then removed."""
    if not path.is_dir():
        os.replace(side, path)
        return
    if not side.is_dir():
        raise IsADirectoryError(errno.EISDIR, "a folder is not replaced by a file", str(path))
    if others := foreign(path):
        said = f"the folder is not replaced, since {others[0]!r} in it is somebody else's, or was changed"
        raise FileExistsError(errno.EEXIST, said, str(path))
    old = _temporary(path, ".old" + SIDE)
    os.rename(path, old)
    try:
        os.rename(side, path)
    except BaseException:
        os.rename(old, path)
        raise
    _remove(old)


def _temporary(path: Path, mark: str) -> Path:
    """A temporary path of this process: two processes that write the same file use two paths."""
    return path.with_name(f".{path.stem}.{os.getpid()}{mark}{path.suffix}")


def _to_disk(path: Path) -> None:
    """Synchronise a file or a folder's entries to the disk."""
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
