"""Files and folders that a command names: checked before the work whose result a mistake would lose."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from mmspec.files import foreign
from mmspec.registry.printable import printable


def refuse_unwritable(*files: Path | None) -> None:
    """Refuse files that cannot be written. Existing devices and pipes are accepted."""
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
    """Refuse folders that cannot be created or written into; creates none."""
    for folder in folders:
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        if not there.is_dir():
            raise ValueError(f"there can be no folder {_shown(folder)}: {_shown(there)} is a file")
        _try(there, ".")


def refuse_taken(folder: Path, others: Mapping[str, Path]) -> None:
    """Refuse a folder that cannot be written anew without a loss: one that is or holds the current folder or one of
    `others`, files and folders by what they are, or that holds anything but what a command of ours wrote there.
    """
    refuse_folders(folder)
    real = folder.resolve()
    for what, path in {"the current folder": Path(), **others}.items():
        if path.resolve().is_relative_to(real):
            raise ValueError(f"{_shown(folder)} is or holds {what}, and would be written anew; name another folder")
    if real.is_dir() and (held := foreign(real)):
        raise ValueError(
            f"{_shown(folder)} holds {printable(held[0])!r}, which was not written there by this command or was "
            "changed since; name a new folder, or an empty one"
        )


def text_of(file: Path) -> str:
    """The text of a file in UTF-8, whatever the locale."""
    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is no text in UTF-8: {error}") from error


def _try(folder: Path, prefix: str) -> None:
    """Create and remove a file, since permissions alone do not say whether that works."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=prefix):
            pass
    except OSError as error:
        raise ValueError(f"nothing can be written into {_shown(folder)}: {error.strerror}") from error


def _shown(path: Path) -> str:
    return printable(str(path))
