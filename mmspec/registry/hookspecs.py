"""The hooks of plugins. None is called inside the decode loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

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


@hookspec
def mmspec_parity_runners() -> Mapping[str, Any]:  # type: ignore[empty-body]
    """The runners of parity fixtures (`mmspec.testing.parity.Runner`), by the stem of the fixture's file."""


@hookspec
def mmspec_layouts() -> Iterable[Any]:  # type: ignore[empty-body]
    """Published files that `mmspec convert` makes a pipeline of: `mmspec.kits.pictures.layouts.Layout`."""


@hookspec(firstresult=True)
def mmspec_advice(files: str) -> str | None:
    """Advice on files at a place, or of a hub name, that no pipeline loads as they are; None: they are not known."""


@hookspec
def mmspec_pipelines() -> Iterable[str]:  # type: ignore[empty-body]
    """Pipelines that no target of the plugin names, as `"module:Class"`; saved folders name their classes."""
