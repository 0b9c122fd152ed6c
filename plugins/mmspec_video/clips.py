"""Frames into a file: GIF, or MP4 where there is a codec; written whole or not at all."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from diffusers.utils import export_to_gif, export_to_video
from PIL import Image

from mmspec.registry.warn import warn

FORMATS = (".gif", ".mp4")


def save_clip(frames: Sequence[Image.Image], path: str | Path, fps: int) -> Path:
    """Write a clip.

    Args:
        frames: At least one.
        path: Its ending says the format. Where nothing can write MP4 (diffusers wants imageio-ffmpeg, the extra
            `mp4`, or OpenCV), it becomes a GIF beside it, and a warning says so.
        fps: Frames a second; a GIF's are rounded to hundredths of a second.

    Returns:
        What was written.

    Raises:
        ValueError: There are no frames, the ending is none of these, or there is no such folder.
    """
    path = Path(path)
    refuse_clip(path, fps)
    if not frames:
        raise ValueError("there are no frames to write")
    if path.suffix.lower() == ".mp4":
        if _written(path, lambda side: export_to_video(list(frames), side, fps=fps, macro_block_size=1)):
            return path
        path = path.with_suffix(".gif")
        warn(f"nothing here can write MP4 (pip install 'mmspec[mp4]'); wrote {path}")
    side = path.with_name(f".{path.stem}.part.gif")
    export_to_gif(list(frames), str(side), fps=fps)
    os.replace(side, path)
    return path


def refuse_clip(path: Path, fps: int) -> None:
    """Refuse what could not be written, before anything is made.

    Raises:
        ValueError: The ending is no format's, there is no such folder, or `fps` is out of its range.
    """
    if path.suffix.lower() not in FORMATS:
        raise ValueError(
            f"a clip is one of {', '.join(FORMATS)}, not {path.suffix or 'without an ending'}: {path.name}"
        )
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent}")
    if not 1 <= fps <= 100:
        raise ValueError(f"fps is 1 to 100, got {fps}")


def _written(path: Path, write: Callable[[str], Any]) -> bool:
    """Whether the file could be written; nothing stays where it could not."""
    side = path.with_name(f".{path.stem}.part.mp4")
    try:
        write(str(side))
    except (ImportError, AttributeError, RuntimeError, OSError):  # what diffusers raises where a backend is missing
        side.unlink(missing_ok=True)
        return False
    if not side.is_file():  # OpenCV says nothing where it has no codec
        return False
    os.replace(side, path)
    return True
