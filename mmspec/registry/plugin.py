"""What is known about a plugin, whether or not it could be loaded."""

import traceback
from dataclasses import dataclass
from typing import Literal

from mmspec.registry.printable import one_line
from mmspec.registry.specs import Spec

CORE = "core"


class PluginError(RuntimeError):
    """A plugin failed and `MMSPEC_STRICT` forbids going on without it."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """A line of `mmspec plugins`.

    Attributes:
        name: The plugin's name; what stands before the colon in `plugin:name`.
        module: The module that it is, or the type of the object that it is.
        location: The module's file, where there is one.
        distribution: The installed distribution that brought it, if any.
        version: That distribution's version.
        components: The specs of what it offers.
        error: Why it could not be loaded, in one line.
        blocked: True if `MMSPEC_PLUGINS` left it out.
        seconds: How long its import and its manifest took.
    """

    name: str
    module: str
    location: str | None = None
    distribution: str | None = None
    version: str | None = None
    components: tuple[Spec, ...] = ()
    error: str | None = None
    blocked: bool = False
    seconds: float = 0.0

    @property
    def status(self) -> Literal["ok", "error", "blocked"]:
        """One word for tables."""
        return "error" if self.error else "blocked" if self.blocked else "ok"


def describe(error: BaseException) -> str:
    """One line: what was raised, and where."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {one_line(error)}{where}"
