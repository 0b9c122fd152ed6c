"""The hooks of the continuous plugin. Imports no torch; the factories do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mmspec.registry import answering, hookimpl

if TYPE_CHECKING:
    import typer

TARGETS = {"mmspec_continuous.models.continuous_ar": "continuous-ar"}
"""Modules of models to their targets."""

mmspec_components = answering("mmspec_continuous.specs:COMPONENTS")
mmspec_shipped_models = answering("mmspec_continuous.cards:SHIPPED")
mmspec_layouts = answering("mmspec_continuous.layouts:LAYOUTS")


@hookimpl
def mmspec_target_for(model: object) -> str | None:
    return TARGETS.get(type(model).__module__)


@hookimpl
def mmspec_commands(app: typer.Typer) -> None:
    from mmspec_continuous import commands

    commands.add(app)


@hookimpl
def mmspec_pipelines() -> Iterable[str]:
    return ("mmspec_continuous.mar_pipeline:MARPipeline",)
