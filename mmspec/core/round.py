"""A round as functions of tensors: rows and draft in; rows after the round and what was decided out.

The eager loop (`mmspec.core.decoder`) calls them one by one, since a round may be settled later than it is verified.
Captured rounds (`mmspec.core.compile`) are compiled from the whole of them.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.compile.protocols import Capturable
from mmspec.core.distributions import PointMass, take_nodes
from mmspec.core.history_processors import Prefix
from mmspec.core.live import Live
from mmspec.core.noise import DraftNoise, Noise, RaceNoise, Round, SpreadNoise
from mmspec.core.philox import PhiloxSource
from mmspec.core.protocols import Target
from mmspec.core.rules.rule import Rule
from mmspec.core.state import State
from mmspec.core.types import Draft, Scores, Step, TargetOutput
from mmspec.core.warp import Warp


@dataclass(frozen=True)
class Pending:
    """A round that is drafted and verified, not settled."""

    draft: Draft  # the rooted draft
    scores: Scores  # the target's scores at its nodes
    nodes: int  # nodes of the target's pass, padding included


def verified(target: Target, state: State, draft: Draft) -> tuple[TargetOutput, int]:
    """The output at the nodes of a rooted draft, and the number of nodes that the pass had."""
    if not state.budget.fixed or draft.nodes == state.budget.width:
        return target.verify(state.cache, draft), draft.nodes
    output = target.verify(state.cache, padded(draft, state.budget.width))
    return output.take(torch.arange(draft.nodes, device=state.emitted.device)[None]), state.budget.width


def padded(draft: Draft, nodes: int) -> Draft:
    """A rooted draft with invalid nodes behind its own, `nodes` in all: a chain stays a chain. For the target's pass
    only: drafter, rule and policy see the draft as it was proposed.

    Padding repeats the root's unit, which every target can embed.
    """
    missing = nodes - draft.nodes
    units = torch.cat([draft.units, draft.units[:, :1].expand(-1, missing, *draft.units.shape[2:])], 1)
    valid: Tensor = pad(draft.valid, (0, missing), value=False)
    return replace(draft, units=units, valid=valid, index=draft.index.padded(nodes), distribution=None, score=None)


def with_truth(draft: Draft, scores: Scores, truth: Tensor) -> tuple[Draft, Scores]:
    """Draft and scores of a round whose truth came later, such as a player's real actions.

    At depth d all mass is on `truth[:, d]`. Nodes may match any unit of the truth, the last one too: it becomes the new
    root, and was already verified.
    """
    depth = draft.index.depth.expand(len(truth), -1).clamp(max=truth.shape[1] - 1)
    distribution = PointMass(take_nodes(truth, depth))
    return draft.shallower(truth.shape[1] + 1), replace(scores, distribution=distribution, finite=distribution.finite())


def decided(
    live: Live, draft: Draft, scores: Scores, rule: Rule, round: Round, most: int | None = None
) -> tuple[Live, Step]:
    """Accept, and append what was accepted to the rows, at most `most` units a row; None: no bound.

    Returns:
        The rows after the round, and the round itself.
    """
    verdict = rule.accept(draft, scores, round)
    after, count = live.checked(draft, scores, verdict).appended(draft, verdict, most)
    return after, Step(draft, scores, verdict, count)


def play_round(
    target: Capturable, cache: Any, live: Live, draft: Draft, warp: Warp, rule: Rule, round: Round
) -> tuple[Live, Step]:
    """Verify, warp, accept, append and commit; torch can trace it over a held cache, inside of `Capturable.ready`.

    The warp's processors are element-wise.

    Returns:
        The rows after the round, and the round itself.
    """
    return settled(target, cache, live, draft, target.forward(cache, draft), warp=warp, rule=rule, round=round)


def settled(
    target: Capturable,
    cache: Any,
    live: Live,
    draft: Draft,
    output: TargetOutput,
    *,
    warp: Warp,
    rule: Rule,
    round: Round,
) -> tuple[Live, Step]:
    """The part of a round that follows a pass, whose `output` it is; other arguments and results as in `play_round`."""
    scores = warp(output, draft, Prefix(live.history, (), live.emitted))
    after, step = decided(live, draft, scores, rule, round)
    target.commit(cache, step.verdict.path, step.count)
    return after, step


@dataclass(frozen=True)
class DrawnNoise(RaceNoise):
    """Noise by position that was drawn before the round: Exp(1) of consecutive positions, `[batch, position, size]`."""

    name = "noise that is drawn before the round"
    advice = "such rounds cannot be captured"

    numbers: Tensor

    def at(self, index: Tensor) -> SpreadNoise:
        return SpreadNoise(self, index)

    def exponential(self, size: int) -> Tensor:
        return self.numbers[..., :size]


class DrawnDraftNoise(DraftNoise):
    """The target's own noise for drafts, of a `DrawnSource`."""

    def chain(self, first: int, count: int) -> Noise:
        noise = self.round.source.by_position(self.round.emitted, (), first + count - 2)
        return noise.at(torch.arange(first - 1, first + count - 1, device=self.round.emitted.device)[None])


@dataclass(frozen=True)
class DrawnSource:
    """The source of a captured round: numbers by position, drawn before it, and fresh ones, computed inside of it."""

    numbers: Tensor | None  # exp(1) by position, `[batch, deepest + 1, size]`, for an invariant rule; else None
    key: Tensor | None  # `[batch, 2]` int64, the key of fresh numbers; None: there are none

    def begin(self, host_emitted: Sequence[int]) -> None:
        """Does nothing: there are numbers for one round only."""

    def by_position(self, emitted: Tensor, host_emitted: Sequence[int], deepest: int) -> DrawnNoise:
        if self.numbers is None:
            raise ValueError("a captured round has noise by position under an invariant rule only, as 'match' is")
        return DrawnNoise(self.numbers[:, : deepest + 1])

    def fresh(self, emitted: Tensor, first: int, count: int) -> Noise:
        if self.key is None:
            raise ValueError("this captured round has noise by position only")
        return PhiloxSource(self.key).fresh(emitted, first, count)

    def sheltered(self) -> AbstractContextManager[None]:
        return nullcontext()

    def finish(self, steps: int) -> None:
        """Does nothing: the call's own source ends the call."""
