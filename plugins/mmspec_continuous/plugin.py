"""What the continuous plugin offers. It imports no torch; the factories do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mmspec.registry import Component, hookimpl
from mmspec_continuous.denoising import components as denoising

if TYPE_CHECKING:
    import typer

TARGETS = {"mmspec_continuous.models.continuous_ar": "continuous-ar"}
"""Modules of models to their targets."""


@hookimpl
def mmspec_components() -> Iterator[Component]:
    """The target, the drafters, then methods."""
    yield Component(
        name="continuous-ar",
        kind="target",
        factory="mmspec_continuous.targets.continuous:ContinuousTarget",
        offers=frozenset({"continuous", "window", "grow", "truncate"}),
        summary="Causal AR over continuous tokens, with a denoising or a mixture head.",
        paper="https://arxiv.org/abs/2406.11838",
        pipeline="mmspec_continuous.pipeline:ContinuousTextToImagePipeline",
        default_method="reflection",
        default_k=16,
    )
    # Named apart from the plugins' discrete ones, so that a name alone is enough to say which.
    yield Component(
        name="continuous-jacobi",
        kind="drafter",
        factory="mmspec_continuous.drafters.jacobi:ContinuousJacobi",
        needs=frozenset({"redraw", "continuous"}),
        offers=frozenset({"chain", "window", "q"}),
        summary="The target's own last pass over a window of tokens; no model, no training.",
        paper="https://arxiv.org/abs/2410.01699",
        options="mmspec_continuous.drafters.jacobi:JacobiOptions",
    )
    yield Component(
        name="continuous-draft-model",
        kind="drafter",
        factory="mmspec_continuous.drafters.draft_model:ContinuousDraftModel",
        needs=frozenset({"continuous"}),
        offers=frozenset({"chain", "q"}),
        summary="A smaller model of the family, of the same tokens and denoising steps.",
        paper="https://arxiv.org/abs/2501.05370",
        options="mmspec_continuous.drafters.draft_model:DraftModelOptions",
    )
    yield Component(
        name="reflection",
        kind="method",
        drafter="continuous-jacobi",
        rule="rejection",
        exactness="lossless",
        summary="Jacobi windows of continuous tokens, coupled by reflection at every step.",
        paper="https://arxiv.org/abs/2501.05370",
    )
    yield Component(
        name="draft-reflection",
        kind="method",
        drafter="continuous-draft-model",
        rule="rejection",
        exactness="lossless",
        summary="A smaller model drafts tokens, coupled by reflection at every step.",
        paper="https://arxiv.org/abs/2501.05370",
    )
    yield from denoising.components()


@hookimpl
def mmspec_target_for(model: object) -> str | None:
    """By the class's home; diffusers pipelines by what they are made of."""
    return TARGETS.get(type(model).__module__) or denoising.target_for(model)


@hookimpl
def mmspec_commands(app: typer.Typer) -> None:
    """Add `mmspec train continuous`."""
    from mmspec_continuous import commands

    commands.add(app)
