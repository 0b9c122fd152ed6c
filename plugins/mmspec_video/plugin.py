"""The hooks of the video plugin. Imports no torch; the factories do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mmspec.registry import Spec, hookimpl
from mmspec_video import specs

if TYPE_CHECKING:
    import typer

TARGETS = {
    "mmspec_video.models.next_frame": "frames",
    "mmspec_video.models.oasis": "frames",
    "mmspec_video.models.token_world": "token-frames",
}
"""Modules of models to their targets."""


@hookimpl
def mmspec_components() -> Iterable[Spec]:
    return specs.COMPONENTS


@hookimpl
def mmspec_target_for(model: object) -> str | None:
    return TARGETS.get(type(model).__module__)


@hookimpl
def mmspec_commands(app: typer.Typer) -> None:
    from mmspec_video import commands

    commands.add(app)


@hookimpl
def mmspec_shipped_models() -> Iterable[Any]:
    from mmspec_video.cards import SHIPPED

    return SHIPPED


@hookimpl
def mmspec_bench_shapes() -> Iterable[Any]:
    from mmspec_video.shapes import SHAPES

    return SHAPES


@hookimpl
def mmspec_parity_runners() -> Mapping[str, Any]:
    from mmspec_video.layouts import ARCHITECTURES

    return ARCHITECTURES


@hookimpl
def mmspec_layouts() -> Iterable[Any]:
    from mmspec_video.layouts import LAYOUTS

    return LAYOUTS
