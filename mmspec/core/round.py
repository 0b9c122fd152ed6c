"""A round: propose, check, verify, warp, accept, append, commit, observe.

`Eager` plays one step by step, since a round may be settled later than it is verified. The steps are functions of
tensors: rows and draft in; rows after the round and what was decided out. Captured rounds (`mmspec.core.compile`) are
recorded or compiled from the whole of them.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.capabilities import LengthAware
from mmspec.core.compile.protocols import Capturable
from mmspec.core.distributions import PointMass, take_nodes
from mmspec.core.history_processors import Prefix
from mmspec.core.live import Live
from mmspec.core.noise import DraftNoise, Noise, RaceNoise, Round, SpreadNoise
from mmspec.core.philox import PhiloxSource
from mmspec.core.policies import Policy
from mmspec.core.proposer import Proposer
from mmspec.core.protocols import Target
from mmspec.core.ranks import Alone, Ranks
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


class Passes(Protocol):
    """The target's passes of a call."""

    def verify(self, state: State, proposed: Draft | None) -> "Passed":
        """Run the pass over a draft (not rooted), or over the root alone if nothing was proposed."""

    def commit(self, state: State, path: Tensor, count: Tensor) -> None:
        """A target's `commit`."""

    def synced(self, state: State) -> None:
        """Called after the loop's host sync: `state.host` says how far the rows are."""


class Passed(NamedTuple):
    """A pass."""

    draft: Draft  # the rooted draft that was verified
    output: TargetOutput  # at its nodes
    nodes: int  # of every row of the pass, padding included


@dataclass(frozen=True)
class OwnPasses:
    """Passes over the rows of one call."""

    target: Target

    def verify(self, state: State, proposed: Draft | None) -> Passed:
        draft = rooted(state, proposed)
        if not state.budget.fixed or draft.nodes == state.budget.width:
            return Passed(draft, self.target.verify(state.cache, draft), draft.nodes)
        output = self.target.verify(state.cache, padded(draft, state.budget.width))
        nodes = torch.arange(draft.nodes, device=state.emitted.device)[None]
        return Passed(draft, output.take(nodes), state.budget.width)

    def commit(self, state: State, path: Tensor, count: Tensor) -> None:
        self.target.commit(state.cache, path, count)

    def synced(self, state: State) -> None:
        if isinstance(self.target, LengthAware):
            self.target.synced(state.cache, state.host.emitted)


def rooted(state: State, proposed: Draft | None) -> Draft:
    """A draft behind the root of its rows."""
    return Draft.alone(state.root) if proposed is None else proposed.rooted(state.root, state.room)


@dataclass(frozen=True)
class Eager:
    """Plays rounds step by step; a round may be settled later than it is verified."""

    passes: Passes
    rule: Rule
    proposer: Proposer
    ranks: Ranks | Alone

    def play(self, state: State, proposed: Draft | None) -> int:
        """Play a round of a draft as in `verify`, but for its host sync: the depth of the draft."""
        pending = self.verify(state, proposed)
        with state.report.phase("rest"):
            self.settle(state, pending)
        return pending.draft.index.deepest

    def propose(self, state: State) -> Draft | None:
        """The round's draft, not rooted: what the policy keeps of the drafter's; None if nothing was proposed."""
        state.source.begin(state.round().host_emitted)
        with state.report.phase("draft"):
            return self.ranks.led(state, self.proposer.propose(state))

    def verify(self, state: State, proposed: Draft | None) -> Pending:
        """The scores at a draft (not rooted), or at the root alone if nothing was proposed. Nothing is committed."""
        with state.report.phase("verify"):
            draft, output, nodes = self.passes.verify(state, proposed)
            return Pending(draft, state.warp(output, draft, state.prefix), nodes)

    def settle(self, state: State, pending: Pending, truth: Tensor | None = None) -> Step:
        """Accept (or compare with a truth that came later), append, commit, observe; as in `Decoder.settle`."""
        draft, scores, most = pending.draft, pending.scores, None
        if truth is not None:
            draft, scores = with_truth(draft, scores, truth)
            most = truth.shape[1]
        active = ~state.done
        step = self.append(state, draft, scores, most)
        # Accepted nodes behind an end unit were not emitted, so they do not count.
        state.report.count(draft.valid, step.verdict.length.minimum(step.count), active, pending.nodes)
        state.report.add_bias(draft, step.verdict, step.count)
        self.passes.commit(state, step.verdict.path, step.count)
        self.proposer.observe(state, step)
        return step

    def append(self, state: State, draft: Draft, scores: Scores, most: int | None = None) -> Step:
        """Let the rule decide, and append what it accepted to the rows: at most `most` units each."""
        state.reserve(draft.index.deepest + 1)
        state.live, state.step = decided(state.live, draft, scores, self.rule, state.round(), most)
        return state.step

    def own_rounds(self, state: State, policy: Policy, watched: bool) -> Iterator[State]:
        """None: drafts come from outside of the rounds."""
        return iter(())

    def renew(self) -> None:
        """Does nothing: no step has anything baked in."""


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
