"""The beginning of a call: prefill, noise, and the scores from which the first unit is drawn."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mmspec.core.capabilities import Bounded, Forcing
from mmspec.core.noise import Source
from mmspec.core.one_shape import started
from mmspec.core.philox import PhiloxSource
from mmspec.core.protocols import Target
from mmspec.core.report import Report
from mmspec.core.state import State
from mmspec.core.types import Draft, Scores
from mmspec.core.warp import Warp


def begun(
    target: Target,
    inputs: Any,
    limit: int,
    report: Report,
    k: int,
    width: int,
    fixed: bool,
    seed: int | Sequence[int],
    source: Source | None,
    warp: Warp | None,
    ends: int | Sequence[int] | None,
) -> tuple[State, Draft, Scores]:
    """Prefill: the call's state, in which nothing is emitted yet, the root alone as a draft, and its scores.

    Args:
        target: The target.
        inputs: Its prompt.
        limit: Units wanted per row, at least 1.
        report: The call's report.
        k: Most units per path of a draft.
        width: Most nodes of a draft, the root included.
        fixed: Whether every pass has `width` nodes.
        seed: As in `Decoder.start`; so are all others.
        source: Noise to use instead of `seed`.
        warp: Turns scores into distributions.
        ends: Unit ids that end a row.

    Raises:
        ValueError: The prompt or a number does not fit.
    """
    with report.phase("prefill"):
        prefill = started(target, inputs, limit, width, fixed)
    report.prompts = prefill.prompts
    if source is None:
        source = PhiloxSource.seeded(seed, len(prefill.prompt), prefill.prompt.device)
    warp = warp if warp is not None else Warp()
    if warp.forced is None and isinstance(target, Forcing):
        warp = replace(warp, forced=target.forced)
    context = target.context if isinstance(target, Bounded) else None
    state = State.begin(prefill, limit, context, ends, source, warp, report, width, k)
    state.fixed = fixed
    draft, output = Draft.alone(state.root), prefill.output
    if prefill.hidden is not None:
        output = replace(output, hidden=prefill.hidden[:, -1:])
    return state, draft, state.warp(output, draft, state.prefix)
