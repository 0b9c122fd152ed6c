"""The hooks of the video plugin. Imports no torch; the factories do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmspec.registry import answering, hookimpl

if TYPE_CHECKING:
    import typer

TARGETS = {
    "mmspec_video.models.next_frame": "frames",
    "mmspec_video.models.oasis": "frames",
    "mmspec_video.models.token_world": "token-frames",
}
"""Modules of models to their targets."""

mmspec_components = answering("mmspec_video.specs:COMPONENTS")
mmspec_shipped_models = answering("mmspec_video.cards:SHIPPED")
mmspec_bench_shapes = answering("mmspec_video.shapes:SHAPES")
mmspec_parity_runners = answering("mmspec_video.layouts:ARCHITECTURES")
mmspec_layouts = answering("mmspec_video.layouts:LAYOUTS")


@hookimpl
def mmspec_target_for(model: object) -> str | None:
    return TARGETS.get(type(model).__module__)


@hookimpl
def mmspec_commands(app: typer.Typer) -> None:
    from mmspec_video import commands

    commands.add(app)
