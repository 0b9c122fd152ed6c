"""Warnings that point at the user's line: the nearest caller that is neither ours nor a library's that called us."""

import sys
import warnings
from types import FrameType

BETWEEN = frozenset(
    {"mmspec", "transformers", "diffusers", "torch", "pluggy", "contextlib", "functools", "typer", "click"}
)
"""Packages whose frames may stand between the user's line and ours; plugins are called `mmspec_…`."""


def warn(message: str) -> None:
    """Warn of something that the user's call brought about."""
    warnings.warn(message, stacklevel=_level(sys._getframe(1)) + 1)


def _level(frame: FrameType) -> int:
    """The distance to the user's frame, ours being 1; ours where there is none, as on the command line."""
    above: FrameType | None = frame
    level = 1
    while above is not None:
        package = above.f_globals.get("__name__", "").partition(".")[0]
        if package not in BETWEEN and not package.startswith("mmspec_"):
            return level
        above, level = above.f_back, level + 1
    return 1
