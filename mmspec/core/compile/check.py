"""Before a captured round is used: whether its pass agrees with the eager one, and which of the two rounds is faster.

Both are measured on rounds that change nothing: all rows are done, and every node repeats the root.
"""

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from mmspec.core.capabilities import RunsModel
from mmspec.core.compile.protocols import Capturable
from mmspec.core.compile.rounds import Buffers, CapturedRound, Passes, Plan
from mmspec.core.out_of_memory import out_of_memory
from mmspec.core.philox import PhiloxSource
from mmspec.core.round import play_round
from mmspec.core.state import State
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Scores
from mmspec.registry.printable import first_line
from mmspec.registry.switches import strict
from mmspec.registry.warn import warn

RUNS = 5
"""Rounds of either kind that are timed."""

SLACK = 16.0
"""Logits may differ by so many units of rounding, as a share of the largest one."""

LEAST = 1e-3
"""The least difference that is refused, as a share of the largest logit."""


def checked_round(
    target: Capturable, held: Buffers, state: State, plan: Plan, passes: Passes, only_if_faster: bool
) -> CapturedRound | None:
    """A new captured round over buffers, which load the call; None if it is slower than eager ones, and must not be.
    For what cannot be compiled, or is wrong, the cache may have a second way to compute.
    """
    eager, expected = timed(lambda: _eager_round(target, state, plan))
    if plan.index is not None:
        target.expect(held.cache, plan.index)
    if plan.drafts is not None:
        plan.drafts.reserve(state)
    captured = CapturedRound(plan, target, held, passes)
    held.load(state)

    def compared() -> float:
        captured.warm()
        seconds, found = timed(captured.idle)
        _refuse_difference(expected, found, _rounding(target))
        return seconds

    try:
        compiled = compared()
    except Exception as error:
        instead = "" if out_of_memory(error) else held.cache.fall_back()
        if strict() or not instead:
            raise
        warn(f"{first_line(error)}; the round is compiled in another way: {instead}")
        passes.pop(plan.shape, None)
        held.rounds.clear()  # whose passes compute in the first way
        compiled = compared()
    return None if only_if_faster and eager <= compiled else captured


def _eager_round(target: Capturable, state: State, plan: Plan) -> Scores:
    """A round over the call's own cache."""
    live = replace(state.live, done=torch.ones_like(state.done), history=state.history.clone())
    star = TreeIndex.static([-1] + [0] * (plan.nodes - 1), state.emitted.device)
    units = state.root[:, None].expand(-1, plan.nodes)
    proposal = plan.proposal(units.device)
    drawn = None if proposal is None else proposal.distribution(units[:, 1:])
    draft = Draft(units, plan.index or star, torch.ones_like(units, dtype=torch.bool), drawn)
    # The call's own source would draw ahead of what others draw from the same generator.
    noise = replace(state.round(), source=PhiloxSource.seeded(0, state.rows, units.device))
    with torch.inference_mode(), target.ready(state.cache, plan.nodes):
        return play_round(target, state.cache, live, draft, plan.warp, plan.rule, noise)[1].scores


def timed(run: Callable[[], Scores]) -> tuple[float, Scores]:
    """The shortest of some runs in seconds, and the scores of the last one."""
    best = float("inf")
    for _ in range(RUNS):
        began = time.perf_counter()
        scores = run()
        bool(scores.finite.any())  # waits for the device
        best = min(best, time.perf_counter() - began)
    return best, scores


def _rounding(target: Capturable) -> float:
    """The rounding unit of a target's weights; float32's if it has none."""
    first = next(target.model.parameters(), None) if isinstance(target, RunsModel) else None
    return float(torch.finfo(torch.float32 if first is None else first.dtype).eps)


def _refuse_difference(expected: Scores, found: Scores, eps: float) -> None:
    """Refuse a captured pass whose scores or hidden states at the root differ from the eager pass's.

    `eps` is the rounding unit of the model's weights.
    """
    assert expected.unprocessed is not None and found.unprocessed is not None
    pairs = [("logits", expected.unprocessed, found.unprocessed)]
    if expected.hidden is not None:
        if found.hidden is None:
            raise ValueError("the captured pass returns no hidden states, which the drafter reads")
        pairs.append(("hidden states", expected.hidden, found.hidden))
    for what, eager, captured in pairs:
        scale, apart = float(eager[:, 0].abs().max()), float((eager[:, 0] - captured[:, 0]).abs().max())
        if not apart <= max(LEAST, SLACK * eps) * scale:
            raise ValueError(
                f"the captured pass differs from the eager one by {apart:.1e}, where {what} reach {scale:.1e}"
            )
