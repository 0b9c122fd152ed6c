"""Frames into a file: GIF, or MP4 where there is a codec; written whole or not at all."""

from collections.abc import Sequence
from pathlib import Path

from diffusers.utils import export_to_gif, export_to_video
from PIL import Image

from mmspec.files import save_whole
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
        if _as_mp4(frames, path, fps):
            return path
        path = path.with_suffix(".gif")
        warn(f"nothing here can write MP4 (pip install 'mmspec[mp4]'); wrote {path}")
    save_whole(path, lambda side: export_to_gif(list(frames), str(side), fps=fps))
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


class _NoCodecError(Exception):
    """Nothing here can write MP4."""


def _as_mp4(frames: Sequence[Image.Image], path: Path, fps: int) -> bool:
    """Whether the file could be written; nothing stays where it could not."""

    def write(side: Path) -> None:
        try:
            export_to_video(list(frames), str(side), fps=fps, macro_block_size=1)
        except (
            ImportError,
            AttributeError,
            RuntimeError,
            OSError,
        ) as error:  # so diffusers says that a backend is missing
            raise _NoCodecError from error
        if not side.is_file():  # OpenCV says nothing where it has no codec
            raise _NoCodecError

    try:
        save_whole(path, write)
    except _NoCodecError:
        return False
    return True
