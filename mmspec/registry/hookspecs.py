"""The three hooks. None is called inside the decode loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

from mmspec.registry.specs import Spec

if TYPE_CHECKING:
    import typer

GROUP = "mmspec"
hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@hookspec
def mmspec_components() -> Iterable[Spec]:  # type: ignore[empty-body]
    """Everything that this plugin offers; imports no torch."""


@hookspec(firstresult=True)
def mmspec_target_for(model: object) -> str | None:
    """Name of the target that fits this live model, or None if none of this plugin's does."""


@hookspec
def mmspec_commands(app: typer.Typer) -> None:
    """Add commands to the command line; heavy imports belong inside them."""
