"""A round step by step: propose, check, verify, warp, accept, append, commit, observe.

What is captured whole stands in `mmspec.core.compile.captured`. One of the two plays the rounds of a call.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from mmspec.core.policies import Policy
from mmspec.core.proposer import Proposer
from mmspec.core.protocols import Target
from mmspec.core.ranks import Alone, Ranks
from mmspec.core.round import Pending, decided, verified, with_truth
from mmspec.core.rules.rule import Rule
from mmspec.core.state import State
from mmspec.core.types import Draft, Scores, Step


@dataclass(frozen=True)
class Eager:
    """Plays rounds step by step; a round may be settled later than it is verified."""

    target: Target
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
            draft = Draft.alone(state.root) if proposed is None else proposed.rooted(state.root, state.room)
            output, nodes = verified(self.target, state, draft)
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
        self.target.commit(state.cache, step.verdict.path, step.count)
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
