"""Calls whose rounds draft by themselves: a round is one launch from draft to commit.

Most are read one round late, so that the device has the next round before anybody asks what the last one gave. The host
copies a round's counts without a wait, launches the next round, and reads the copy after that. Rows that ended
meanwhile do nothing in the round that is too many. Who streams units, or stops rows on the host, needs the counts of a
round before the next.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.compile.rounds import CapturedRound, read_at_once
from mmspec.core.protocols import Drafter
from mmspec.core.state import State


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


def own_rounds(state: State, captured: CapturedRound, drafter: Drafter, watched: bool) -> Iterator[State]:
    """Decode to the end, or to the next pause, or until somebody who watches forbids drafts: the state of every round.

    The call was loaded into `captured`, a round that drafts by itself and borrows the drafter's memory. Under
    `watched`, the counts of every round are read before the next one. If not, and if no number that is drawn depends on
    them, the state has the counts of the round before.
    """
    drafts = captured.plan.drafts
    late = not watched and not read_at_once(state.emitted.device) and captured.needs_no_counts(state)
    unread: list[Counts] = []
    assert drafts is not None
    drafts.load(drafter, state)
    try:
        while not state.finished and (late or state.budget.drafting):
            with state.report.phase("verify"):
                state.source.begin(state.round().host_emitted)
                captured.launch(state, len(unread))
            with state.report.phase("rest"):
                unread.append(Counts.of(state))
                if len(unread) > late:
                    _count(state, captured)
                    state.arrived(unread.pop(0).read())
            yield state
    finally:
        drafts.unload(drafter, state)


def _count(state: State, captured: CapturedRound) -> None:
    """Count the round whose counts arrive next; the one that is too many never does."""
    report = state.report
    report.rounds += 1
    report.row_rounds += sum(not done for done in state.host_done)
    report.sizes[captured.plan.nodes] += 1
