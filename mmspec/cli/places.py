"""Files and folders that are to be written: what could only fail in the end is refused before anything is made."""

import tempfile
from pathlib import Path

from mmspec.registry.printable import printable


def refuse_unwritable(*files: Path | None) -> None:
    """Refuse a file that cannot be made. A device or a pipe that is there is taken as it is.

    Args:
        *files: What is to be written; None stands for nothing.

    Raises:
        ValueError: There is no folder for one, it is a folder itself, or nothing can be written there.
    """
    for file in files:
        if file is None:
            continue
        if not file.parent.is_dir():
            raise ValueError(f"there is no folder {_shown(file.parent)} for {_shown(Path(file.name))}")
        if file.is_dir():
            raise ValueError(f"{_shown(file)} is a folder; name a file")
        if file.is_file() or not file.exists():
            _try(file.parent, f".{file.name}.")


def refuse_folders(*folders: Path) -> None:
    """Refuse folders that cannot be made or written into; none is made.

    Raises:
        ValueError: A file is in the way, or nothing can be written there.
    """
    for folder in folders:
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        if not there.is_dir():
            raise ValueError(f"there can be no folder {_shown(folder)}: {_shown(there)} is a file")
        _try(there, ".")


def _try(folder: Path, prefix: str) -> None:
    """Make a file and remove it: rights alone do not say whether that works."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=prefix):
            pass
    except OSError as error:
        raise ValueError(f"nothing can be written into {_shown(folder)}: {error.strerror}") from error


def _shown(path: Path) -> str:
    return printable(str(path))
