"""The hooks of the continuous plugin. Imports no torch; the factories do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mmspec.registry import Spec, hookimpl
from mmspec_continuous import specs

if TYPE_CHECKING:
    import typer

TARGETS = {"mmspec_continuous.models.continuous_ar": "continuous-ar"}
"""Modules of models to their targets."""


@hookimpl
def mmspec_components() -> Iterable[Spec]:
    return specs.COMPONENTS


@hookimpl
def mmspec_target_for(model: object) -> str | None:
    return TARGETS.get(type(model).__module__)


@hookimpl
def mmspec_commands(app: typer.Typer) -> None:
    from mmspec_continuous import commands

    commands.add(app)


@hookimpl
def mmspec_shipped_models() -> Iterable[Any]:
    from mmspec_continuous.cards import SHIPPED

    return SHIPPED


@hookimpl
def mmspec_layouts() -> Iterable[Any]:
    from mmspec_continuous.layouts import LAYOUTS

    return LAYOUTS


@hookimpl
def mmspec_pipelines() -> Iterable[str]:
    return ("mmspec_continuous.mar_pipeline:MARPipeline",)
