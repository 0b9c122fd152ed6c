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
    """The target, the drafters, the rules, the methods, and the adapter for diffusers pipelines."""
    return specs.COMPONENTS


@hookimpl
def mmspec_target_for(model: object) -> str | None:
    """By the module of the model's class."""
    return TARGETS.get(type(model).__module__)


@hookimpl
def mmspec_commands(app: typer.Typer) -> None:
    """Add the commands of pictures of tokens."""
    from mmspec_continuous import commands

    commands.add(app)


@hookimpl
def mmspec_shipped_models() -> Iterable[Any]:
    """The models of our cards."""
    from mmspec_continuous.cards import SHIPPED

    return SHIPPED
