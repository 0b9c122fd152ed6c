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
    """A line of `mmspec plugins`."""

    name: str  # the plugin's name; what stands before the colon in `plugin:name`
    module: str  # the module that it is, or the type of the object that it is
    location: str | None = None  # the module's file, where there is one
    distribution: str | None = None  # the installed distribution that brought it, if any
    version: str | None = None  # that distribution's version
    components: tuple[Spec, ...] = ()  # the specs of what it offers
    error: str | None = None  # why it could not be loaded, in one line
    blocked: bool = False  # true if `MMSPEC_PLUGINS` left it out
    seconds: float = 0.0  # how long its import and its manifest took

    @property
    def status(self) -> Literal["ok", "error", "blocked"]:
        """One word for tables."""
        return "error" if self.error else "blocked" if self.blocked else "ok"


def describe(error: BaseException) -> str:
    """One line: what was raised, and where."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {one_line(error)}{where}"
