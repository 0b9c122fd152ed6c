"""What the commands that benchmark pictures share: files and counts refused early, quiet pipelines."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mmspec.bench import command
from mmspec.bench.command import Progress

if TYPE_CHECKING:
    from mmspec.report.result import Result


def refuse(pictures: int, json: Path | None, plot: Path | None) -> None:
    """Refuse what could only fail in the end.

    Args:
        pictures: Drawn by every method.
        json: Where the result is to be written, or None.
        plot: Where it is to be drawn, or None.

    Raises:
        ValueError: A file cannot be written, or one picture has no distance to others.
    """
    command.check_output_folders(json, plot)
    if pictures < 2:
        raise ValueError("one picture has no distance to others; ask for two repeats or two prompts at least")


def bench(name: str, run: Callable[[Progress], "Result"], json: Path | None, plot: Path | None) -> None:
    """As `mmspec.bench.command.bench`; pipelines load without bars of their own."""
    from diffusers.utils import logging

    logging.disable_progress_bar()
    command.bench(name, run, json, plot)
