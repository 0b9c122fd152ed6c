"""Captured rounds as the player of a call, whose drafts come from outside or are made by the rounds themselves.

A round that drafts by itself is one launch from draft to commit. Most are read one round late, so that the device has
the next round before anybody asks what the last one gave. The host copies a round's counts without a wait, launches the
next round, and reads the copy after that. Rows that ended meanwhile do nothing in the round that is too many. Who
streams units, or stops rows on the host, needs the counts of a round before the next.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.compile.choice import Captures, Way
from mmspec.core.compile.rounds import CapturedRound, read_at_once
from mmspec.core.eager import Eager
from mmspec.core.policies import Policy
from mmspec.core.state import State
from mmspec.core.types import Draft


class Captured:
    """Plays the rounds of one call as captured ones; from one that cannot be captured on, the eager player does."""

    def __init__(self, captures: Captures, eager: Eager, way: Way) -> None:
        self.captures, self.eager, self.way = captures, eager, way
        self.round: CapturedRound | None = None  # the last one, which has the call in its buffers
        self._played = False

    def play(self, state: State, proposed: Draft | None) -> int:
        """Play a round of a draft that is not rooted, but for its host sync: the depth of the draft.

        A draft that does not fit the last round, as its tree is another one, changes the round.
        """
        draft = Draft.empty(state.root) if proposed is None else proposed
        if self.round is None or not self.round.fits(draft):
            self.round = self.captures.round_for(state, draft, self.way, self.round)
        if self.round is None:
            if self._played:
                state.report.width = None  # captured and eager rounds in one call: no plain decoding has these
            state.player = self.eager
            return self.eager.play(state, proposed)
        self._played = True
        with state.report.phase("verify"):
            self.round(state, draft)
        with state.report.phase("rest"):
            assert state.step is not None
            self.eager.proposer.observe(state, state.step)
        return draft.index.deepest

    def own_rounds(self, state: State, policy: Policy, watched: bool) -> Iterator[State]:
        """Play rounds that draft by themselves to the end, or to the next pause: the state of every round. There are
        none where drafts come from outside; and no more once somebody who watches forbids drafts.

        Such a round borrows the drafter's memory. Under `watched`, the counts of every round are read before the next
        one. If not, and if no number that is drawn depends on them, the state has the counts of the round before.
        """
        drafting = self.captures.drafting_round(state, policy, self.way)
        if drafting is None:
            return
        self.round, self._played = drafting, True
        drafts, drafter = drafting.plan.drafts, self.captures.drafter
        late = not watched and not read_at_once(state.emitted.device) and drafting.needs_no_counts(state)
        unread: list[Counts] = []
        assert drafts is not None
        drafts.load(drafter, state)
        try:
            while not state.finished and (late or state.budget.drafting):
                with state.report.phase("verify"):
                    state.source.begin(state.round().host_emitted)
                    drafting.launch(state, len(unread))
                with state.report.phase("rest"):
                    unread.append(Counts.of(state))
                    if len(unread) > late:
                        _count(state, drafting)
                        state.arrived(unread.pop(0).read())
                yield state
        finally:
            drafts.unload(drafter, state)

    def renew(self) -> None:
        """Choose the next round anew: something changed that rounds bake in, such as a guidance scale."""
        self.round = None


@dataclass(frozen=True)
class Counts:
    """A round's counts on their way to the host."""

    numbers: Tensor  # as `State.counts`, on the host; meaningful once `copied`
    copied: torch.cuda.Event | None  # the event behind the copy; None: there was nothing to wait for

    @classmethod
    def of(cls, state: State) -> "Counts":
        """Begin to copy the counts of a call."""
        counts = state.counts()
        if counts.device.type != "cuda":
            return cls(counts.clone(), None)
        numbers = torch.empty_like(counts, device="cpu", pin_memory=True).copy_(counts, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record(torch.cuda.current_stream(counts.device))
        return cls(numbers, copied)

    def read(self) -> list[int]:
        """The counts; the one wait of a round."""
        if self.copied is not None:
            self.copied.synchronize()
        numbers: list[int] = self.numbers.tolist()
        return numbers


def _count(state: State, captured: CapturedRound) -> None:
    """Count the round whose counts arrive next; the one that is too many never does."""
    report = state.report
    report.rounds += 1
    report.row_rounds += sum(not done for done in state.host_done)
    report.sizes[captured.plan.nodes] += 1
