"""What commands that draw pictures share: files written whole or not at all, several pictures on a sheet, CTRL-C.

Nothing heavy is imported before a command runs.
"""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def ctrl_c_stops(pipe: Any) -> Iterator[None]:
    """Inside the block CTRL-C stops the pipeline's call after its round; the second one stops it at once."""

    def stop(*_: Any) -> None:
        pipe._interrupt = True
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def write_whole(picture: Any, file: Path) -> None:
    """Write a picture, or nothing: never half of one."""
    part = file.with_name(f".{file.stem}.part{file.suffix}")
    try:
        picture.save(part)
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)


def sheet(pictures: Sequence[Any]) -> Any:
    """One picture, or several side by side: as square as their number allows."""
    from diffusers.utils import make_image_grid

    rows = next(n for n in range(int(len(pictures) ** 0.5), 0, -1) if len(pictures) % n == 0)
    return make_image_grid(list(pictures), rows=rows, cols=len(pictures) // rows)


def refuse_unwritable(file: Path) -> None:
    """Refuse a file before anything is drawn for it.

    Raises:
        ValueError: It has no folder, is one, or does not end in a format of pictures.
    """
    from PIL import Image

    Image.init()
    if not file.parent.is_dir():
        raise ValueError(f"there is no folder {file.parent} for {file.name}")
    if file.is_dir():
        raise ValueError(f"{file} is a folder; name a file, such as {file / 'out.png'}")
    if Image.registered_extensions().get(file.suffix.lower()) not in Image.SAVE:
        raise ValueError(f"{file.name} does not end in a format of pictures; .png, .jpg and .webp do")
