"""The hooks of the text plugin. Imports no torch; the factories do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mmspec.registry import Spec, hookimpl
from mmspec_text import specs

if TYPE_CHECKING:
    import typer


@hookimpl
def mmspec_components() -> Iterable[Spec]:
    """The target for transformers models, then drafters and methods."""
    return specs.COMPONENTS


@hookimpl(trylast=True)
def mmspec_target_for(model: object) -> str | None:
    """`transformers` for a live model that generates and has a config; plugins that know it better are asked first."""
    fits = hasattr(getattr(model, "config", None), "model_type") and hasattr(model, "generate")
    return "transformers" if fits else None


@hookimpl
def mmspec_commands(app: typer.Typer) -> None:
    """Add the commands of texts."""
    from mmspec_text import commands

    commands.add(app)


@hookimpl
def mmspec_shipped_models() -> Iterable[Any]:
    """The models of our cards."""
    from mmspec_text.cards import SHIPPED

    return SHIPPED


@hookimpl
def mmspec_bench_shapes() -> Iterable[Any]:
    """The shapes of `mmspec bench core`."""
    from mmspec_text.bench import SHAPES

    return SHAPES
