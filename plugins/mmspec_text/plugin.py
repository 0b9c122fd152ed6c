"""The hooks of the text plugin. Imports no torch; the factories do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmspec.registry import answering, hookimpl

if TYPE_CHECKING:
    import typer

mmspec_components = answering("mmspec_text.specs:COMPONENTS")
mmspec_shipped_models = answering("mmspec_text.cards:SHIPPED")
mmspec_bench_shapes = answering("mmspec_text.bench:SHAPES")


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
