"""The hooks of the image plugin. Imports no torch; the factories do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mmspec.registry import Spec, hookimpl
from mmspec_image import specs

if TYPE_CHECKING:
    import typer

TARGETS = {f"mmspec_image.models.{name}": name for name in ("llamagen", "janus", "chameleon")}
TARGETS["mmspec_image.models.grid_language"] = "grid-language"
"""Modules of our models to their targets."""
STOCK = {"GlmImageForConditionalGeneration": "glm-image", "Emu3ForConditionalGeneration": "emu3"}
"""Classes of transformers to their targets."""


@hookimpl
def mmspec_components() -> Iterable[Spec]:
    return specs.COMPONENTS


@hookimpl
def mmspec_target_for(model: object) -> str | None:
    """By the class's home: our LlamaGen, and Janus and Chameleon taken for pictures; others are the text plugin's.

    Of transformers' own classes, by name, the classes whose `generate` can write pictures.
    """
    home, _, _ = type(model).__module__.partition(".")
    return STOCK.get(type(model).__name__) if home == "transformers" else TARGETS.get(type(model).__module__)


@hookimpl
def mmspec_commands(app: typer.Typer) -> None:
    from mmspec_image import commands

    commands.add(app)


@hookimpl
def mmspec_shipped_models() -> Iterable[Any]:
    from mmspec_image.cards import SHIPPED

    return SHIPPED


@hookimpl
def mmspec_bench_shapes() -> Iterable[Any]:
    from mmspec_image.shapes import SHAPES

    return SHAPES


@hookimpl
def mmspec_parity_runners() -> Mapping[str, Any]:
    from mmspec_image.layouts import ARCHITECTURES

    return ARCHITECTURES


@hookimpl
def mmspec_layouts() -> Iterable[Any]:
    from mmspec_image.layouts import LAYOUTS

    return LAYOUTS
