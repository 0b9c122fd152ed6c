"""Calls that the host reads one round late: the device has the next round before anybody asks what the last one gave.

A round is then one launch from draft to commit. The host copies a round's counts without a wait, launches the next
round, and reads the copy after that. Rows that ended meanwhile do nothing in the round that is too many. This is for
calls that nobody watches: who streams units, or stops rows on the host, needs the counts of a round before the next.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.compile.rounds import CapturedRound
from mmspec.core.protocols import Drafter
from mmspec.core.state import State


@dataclass(frozen=True)
class Counts:
    """A round's counts on their way to the host."""

    numbers: Tensor  # as `State.counts`, on the host; meaningful once `copied`.
    copied: torch.cuda.Event | None  # the event behind the copy; None: there was nothing to wait for

    @classmethod
    def of(cls, state: State) -> "Counts":
        """Begin to copy the counts of a call."""
        counts = state.counts()
        if counts.device.type != "cuda":
            return cls(counts, None)
        numbers = torch.empty_like(counts, device="cpu", pin_memory=True).copy_(counts, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record(torch.cuda.current_stream(counts.device))
        return cls(numbers, copied)

    def read(self) -> list[list[int]]:
        """The counts; the one wait of a round."""
        if self.copied is not None:
            self.copied.synchronize()
        numbers: list[list[int]] = self.numbers.tolist()
        return numbers


def late_rounds(state: State, captured: CapturedRound, drafter: Drafter) -> Iterator[State]:
    """Decode to the end: the state after every round, with the counts of the round before.

    Args:
        state: The call, which was loaded into `captured`.
        captured: A round that drafts by itself.
        drafter: The call's drafter, whose memory the round borrows.

    Raises:
        ValueError: As `State.sync`, a round later.
    """
    drafts, unread = captured.plan.drafts, None
    assert drafts is not None
    drafts.load(drafter)
    try:
        while not state.finished:
            with state.report.phase("verify"):
                captured.launch(state)
            with state.report.phase("rest"):
                counts = Counts.of(state)
                if unread is not None:
                    _count(state, captured)
                    state.arrived(unread.read())
                unread = counts
            yield state
    finally:
        drafts.unload(drafter)


def _count(state: State, captured: CapturedRound) -> None:
    """Count the round whose counts arrive next; the one that is too many never does."""
    report = state.report
    report.rounds += 1
    report.row_rounds += sum(not done for done in state.host_done)
    report.sizes[captured.plan.nodes] += 1
