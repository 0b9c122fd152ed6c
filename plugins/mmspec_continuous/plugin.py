"""What the continuous plugin offers. It imports no torch; the factories do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mmspec.registry import Component, hookimpl
from mmspec_continuous.denoising import components as denoising

if TYPE_CHECKING:
    import typer

REFLECTION, CSPD = "https://arxiv.org/abs/2501.05370", "https://arxiv.org/abs/2411.11925"
"""Papers."""
TARGETS = {"mmspec_continuous.models.continuous_ar": "continuous-ar"}
"""Modules of models to their targets."""


@hookimpl
def mmspec_components() -> Iterator[Component]:
    """The target, the drafters, the rules, then methods."""
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
        paper=REFLECTION,
        options="mmspec_continuous.drafters.draft_model:DraftModelOptions",
    )
    yield Component(
        name="continuous-sets",
        kind="drafter",
        factory="mmspec_continuous.drafters.sets:ContinuousSets",
        needs=frozenset({"redraw", "continuous"}),
        offers=frozenset({"chain", "window", "q", "sets"}),
        summary="A window whose first half the last pass decided; for set-parallel.",
        paper=CSPD,
        options="mmspec_continuous.drafters.sets:SetsOptions",
    )
    yield from _rules()
    yield from _methods()
    yield from denoising.components()


def _rules() -> Iterator[Component]:
    yield Component(
        name="tempered",
        kind="rule",
        factory="mmspec_continuous.rules.tempered:Tempered",
        needs=frozenset({"continuous", "chain"}),
        offers=frozenset({"redraw"}),
        exactness="lossy",
        summary="Test the last denoising step only, its exponent divided by tau.",
        paper=CSPD,
        options="mmspec_continuous.rules.tempered:TemperedOptions",
    )
    yield Component(
        name="set-parallel",
        kind="rule",
        factory="mmspec_continuous.rules.set_parallel:SetParallel",
        needs=frozenset({"continuous", "sets"}),
        offers=frozenset({"redraw"}),
        exactness="lossy",
        summary="Judge every token once; it stands whatever becomes of those before it.",
        paper=CSPD,
    )
    yield Component(
        name="denoise-ahead",
        kind="rule",
        factory="mmspec_continuous.rules.denoise_ahead:DenoiseAhead",
        needs=frozenset({"continuous", "chain"}),
        offers=frozenset({"redraw"}),
        exactness="lossless",
        summary="Rejection; free draws take several denoising steps per call of the head.",
        paper=REFLECTION,
        options="mmspec_continuous.rules.denoise_ahead:AheadOptions",
    )


def _methods() -> Iterator[Component]:
    yield Component(
        name="reflection",
        kind="method",
        drafter="continuous-jacobi",
        rule="rejection",
        exactness="lossless",
        summary="Jacobi windows of continuous tokens, coupled by reflection at every step.",
        paper=REFLECTION,
    )
    yield Component(
        name="draft-reflection",
        kind="method",
        drafter="continuous-draft-model",
        rule="rejection",
        exactness="lossless",
        summary="A smaller model drafts tokens, coupled by reflection at every step.",
        paper=REFLECTION,
    )
    yield Component(
        name="denoise-ahead",
        kind="method",
        rule="denoise-ahead",
        exactness="lossless",
        summary="Plain tokens, each in fewer calls of the denoising head.",
        paper=REFLECTION,
    )
    yield Component(
        name="cspd",
        kind="method",
        drafter="continuous-draft-model",
        rule="tempered",
        exactness="lossy",
        defaults={"prefill": 0.05},
        summary="Continuous speculative decoding as published: a tempered test, not exact.",
        paper=CSPD,
    )
    yield Component(
        name="set-parallel",
        kind="method",
        drafter="continuous-sets",
        rule="set-parallel",
        exactness="lossy",
        summary="Sets of tokens, each drawn in one pass after drafts: another sampler.",
        paper=CSPD,
    )


@hookimpl
def mmspec_target_for(model: object) -> str | None:
    """By the class's home; diffusers pipelines by what they are made of."""
    return TARGETS.get(type(model).__module__) or denoising.target_for(model)


@hookimpl
def mmspec_commands(app: typer.Typer) -> None:
    """Add `mmspec train continuous`."""
    from mmspec_continuous import commands

    commands.add(app)


@hookimpl
def mmspec_shipped_models() -> Iterable[Any]:
    """The models of our cards."""
    from mmspec_continuous.cards import SHIPPED

    return SHIPPED


@hookimpl
def mmspec_parity_runners() -> Mapping[str, Any]:
    """Runners of our parity fixtures."""
    from mmspec_continuous.parity import ARCHITECTURES

    return ARCHITECTURES
