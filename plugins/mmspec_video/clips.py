"""Write frames as GIF, or as MP4 where a codec is installed; a file is written whole or not at all."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from diffusers.utils import export_to_gif, export_to_video
from PIL import Image

from mmspec.files import save_whole
from mmspec.registry.numbers import whole
from mmspec.registry.warn import warn

FORMATS = (".gif", ".mp4")


def save_clip(frames: Sequence[Image.Image], path: str | Path, fps: int) -> Path:
    """Write a clip of at least one frame; returns the file that was written.

    The path's suffix selects the format. Where MP4 cannot be written (diffusers needs imageio-ffmpeg, the extra `mp4`,
    or OpenCV), a GIF with the same stem is written instead, and a warning says so. `fps` are frames per second; a GIF's
    durations are rounded to hundredths of a second.
    """
    path = Path(path)
    refuse_clip(path, fps)
    if not frames:
        raise ValueError("there are no frames to write")
    if path.suffix.lower() == ".mp4":
        try:
            save_whole(path, partial(_write_mp4, frames, fps))
            return path
        except _NoCodecError:
            path = path.with_suffix(".gif")
            warn(f"nothing here can write MP4 (pip install 'mmspec[mp4]'); wrote {path}")
    save_whole(path, lambda side: export_to_gif(list(frames), str(side), fps=fps))
    return path


def refuse_clip(path: Path, fps: int) -> None:
    """Refuse a file that could not be written, before frames are made for it."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(
            f"a clip is one of {', '.join(FORMATS)}, not {path.suffix or 'without an ending'}: {path.name}"
        )
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent}")
    refuse_rate(fps)


def refuse_rate(fps: int) -> None:
    """Refuse frames per second that no clip has."""
    if not 1 <= whole("fps", fps) <= 100:
        raise ValueError(f"fps is 1 to 100, got {fps}")


def _write_mp4(frames: Sequence[Image.Image], fps: int, path: Path) -> None:
    """Write an MP4."""
    try:
        export_to_video(list(frames), str(path), fps=fps, macro_block_size=1)
    except (ImportError, AttributeError, RuntimeError, OSError) as error:  # what diffusers raises without a backend
        raise _NoCodecError from error
    if not path.is_file():  # OpenCV without a codec fails silently
        raise _NoCodecError


class _NoCodecError(Exception):
    """No installed codec can write MP4."""
