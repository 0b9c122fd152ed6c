"""One call: its rows, what bounds its drafts, and the noise it draws from.

Device tensors are authoritative; `State.host` has copies of some, refreshed by a round's one host sync.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.budget import Budget
from mmspec.core.distributions import take_nodes
from mmspec.core.history_processors import Prefix
from mmspec.core.live import NOWHERE, Live, nonfinite_message, with_room
from mmspec.core.noise import Round, Source
from mmspec.core.report import Report
from mmspec.core.types import Prefill, Step
from mmspec.core.warp import Warp


@dataclass
class HostCopy:
    """The host's copy of a call's rows at the last sync."""

    emitted: list[int]
    done: list[bool]
    pads: list[int] = field(default_factory=list)  # empty before the first sync
    unread: int = 0  # most units per row that were appended since


@dataclass
class State:
    """One call. Components read it; what only one of them may read says so."""

    live: Live  # its rows: what a round changes
    cache: Any  # the target's, from `Target.start`; only the target reads it
    prompt_length: int  # the same for all rows; shorter prompts are padded on the left
    limit: int  # units wanted per row
    budget: Budget  # what its drafts may be
    source: Source  # its noise
    warp: Warp  # turns scores into distributions
    report: Report  # counts and times
    host: HostCopy  # what the last sync read
    hidden: Tensor | None = None  # the prompt's hidden states as in `Prefill`, until the drafter has begun
    memory: Any = None  # the drafter's, from `Drafter.start`; only the drafter reads it
    step: Step | None = None  # the last settled round; after prefill, its draft is the root alone
    pause: int | None = None  # units at which every row waits for the others (`Decoder.rounds`); None: nowhere
    player: Any = None  # plays its rounds: `mmspec.core.round.Eager` or `mmspec.core.compile.captured.Captured`
    counted: Tensor | None = None  # of a captured round, until the host reads them: `CapturedRound.counts`

    @classmethod
    def begin(
        cls,
        started: Prefill,
        limit: int,
        budget: Budget,
        *,
        source: Source,
        warp: Warp,
        report: Report,
        ends: int | Sequence[int] | None = None,
        context: int | None = None,
    ) -> "State":
        """The state after prefill: the prompt is known, nothing is emitted, the root is the prompt's last unit."""
        rows, prompt_length = started.prompt.shape[:2]
        live = Live.begin(started.prompt, started.pads, limit, ends, context)
        host = HostCopy([0] * rows, [False] * rows)
        return cls(live, started.cache, prompt_length, limit, budget, source, warp, report, host, started.hidden)

    @property
    def rows(self) -> int:
        """Rows of the batch."""
        return len(self.emitted)

    @property
    def history(self) -> Tensor:
        """`[batch, column, *unit]`: prompt, emitted units, room for more; the last column is scratch."""
        return self.live.history

    @property
    def seen(self) -> Live:
        """The rows, their history without the columns that no row can have reached."""
        columns = self.prompt_length + max(self.host.emitted) + self.host.unread
        return replace(self.live, history=self.history[:, :columns])

    @property
    def pads(self) -> Tensor:
        """The number of the prompt's units that are padding: `[batch]` int64."""
        return self.live.pads

    @property
    def emitted(self) -> Tensor:
        """Units emitted so far, the root included: `[batch]` int64."""
        return self.live.emitted

    @property
    def root(self) -> Tensor:
        """The last known unit, `[batch, *unit]`; the target's cache does not hold it yet."""
        return self.live.root

    @property
    def done(self) -> Tensor:
        """Rows that are finished: `[batch]` bool."""
        return self.live.done

    @property
    def context(self) -> int | None:
        """Most units of a row that the target supports, prompt included: no draft goes beyond. None: no bound."""
        return self.live.context

    @property
    def known(self) -> Tensor:
        """Known units of `history`, the prompt and its padding included: `[batch]` int64."""
        return self.live.known

    def as_prompt(self) -> tuple[Tensor, Tensor]:
        """The known units as a prompt `[batch, known, *unit]`, padded on the left, and its padding `[batch]`."""
        known = self.prompt_length + max(self.host.emitted)
        behind = known - self.known
        order = torch.arange(known, device=behind.device) - behind[:, None]
        return take_nodes(self.history, order.clamp(min=0)), self.pads + behind

    @property
    def room(self) -> Tensor:
        """The depth of each row's drafts, within limit (the bonus unit excluded) and context: `[batch]`; 0 if done."""
        return self.live.room

    @property
    def prefix(self) -> Prefix:
        """The known units, for the warp."""
        return Prefix(self.history, [self.prompt_length + n for n in self.host.emitted], self.emitted)

    @property
    def most_room(self) -> int:
        """The largest `room` of any row, from the host's copies."""
        context = self.context if self.context is not None else self.prompt_length + self.limit
        rooms = [
            min(self.reach - emitted - 1, context - (self.prompt_length - pads + emitted))
            for emitted, pads, done in zip(self.host.emitted, self.host.pads, self.host.done, strict=True)
            if not done
        ]
        return max(rooms, default=0)

    @property
    def reach(self) -> int:
        """Units per row up to which rounds go: to the limit, or the next pause."""
        return self.limit if self.pause is None else min(self.limit, self.pause)

    @property
    def finished(self) -> bool:
        """True if every row was done, or waited at a pause, at the last sync."""
        return all(self.host.done)

    @property
    def waits(self) -> bool:
        """True if the call stands at a pause."""
        return self.finished and self.reach < self.limit

    def go_on(self, pause: int | None) -> None:
        """Run up to the next pause, or to the end. Every row waits at the one before, is done, or has just begun."""
        before, self.pause = self.reach, pause
        ends = self.live.ends
        ended = torch.isin(self.root, ends) if len(ends) else torch.zeros_like(self.done)
        waited = (self.emitted == before) & ~ended
        self._set_reach((self.done & ~waited) | (self.emitted >= self.reach))

    def lengthen(self, limit: int) -> None:
        """Want so many units per row, of which every row has emitted some."""
        self.limit = limit
        self._set_reach(self.emitted >= self.reach)

    def _set_reach(self, done: Tensor) -> None:
        """Put the reach into the rows, of which some are `done [batch]` now."""
        if isinstance(self.live.limit, Tensor):  # the rows are in the buffers of captured rounds
            self.live.done.copy_(done)
            self.live.limit.fill_(self.reach)
        else:
            self.live = replace(self.live, done=done, limit=self.reach)
        self.host.done = done.tolist()
        self._update_report()

    def round(self) -> Round:
        """The noise of the current round."""
        active = [n for n, done in zip(self.host.emitted, self.host.done, strict=True) if not done]
        # Finished rows follow the slowest active row (their draws are not read): buffered noise can then be dropped.
        slowest = min(active, default=0)
        host_emitted = [slowest if done else n for n, done in zip(self.host.emitted, self.host.done, strict=True)]
        return Round(self.source, self.emitted, host_emitted)

    def reserve(self, units: int) -> None:
        """Make room in the history for at most so many units more per row; called before they are appended."""
        self.host.unread += units
        most_emitted = max(self.host.emitted) + self.host.unread
        history = with_room(self.history, self.prompt_length, most_emitted, self.limit)
        if history is not self.history:
            self.live = replace(self.live, history=history)

    def sync(self) -> None:
        """The one host sync of a round: how many units every row has, and whether it is done.

        When all rows are done, the noise source is left as plain decoding would leave it.
        """
        self.arrived(self.counts().tolist())

    def counts(self) -> Tensor:
        """The numbers that the host wants after a round, in one tensor `[number]` of int64, for `arrived`."""
        more = [*(() if self.host.pads else (self.pads,)), *self.budget.wanted()]
        if self.counted is None:
            return torch.cat([self.emitted, self.done.long(), self.live.nonfinite, *more])
        return torch.cat([self.counted, *more]) if more else self.counted

    def arrived(self, counts: list[int]) -> None:
        """Take `counts` that are on the host now."""
        rows = self.rows
        emitted, done, nonfinite = (counts[number * rows : (number + 1) * rows] for number in range(3))
        rest = counts[3 * rows :]
        if self.counted is not None:
            nodes = len(self.counted) - 3 * rows
            self.report.add_read(rest[0], rest[1:nodes])
            self.counted, rest = None, rest[nodes:]
        more = [rest[first : first + rows] for first in range(0, len(rest), rows)]
        pads = self.host.pads or more.pop(0)
        for row, position in enumerate(nonfinite):
            if position != NOWHERE:
                fault = nonfinite_message(self.step, row, position, emitted[row])
                raise ValueError(f"row {row}: {fault}; check the weights, the dtype and the logits processors")
        self.host = HostCopy(emitted, [bool(d) for d in done], pads)
        self.budget.arrived(more)
        self._update_report()

    def end_rows_of(self, other: "State") -> None:
        """End the rows that are done in another call with the same rows."""
        self.live = replace(self.live, done=self.done | other.done)
        self.host.done = [a or b for a, b in zip(self.host.done, other.host.done, strict=True)]

    def stop(self, row: int, count: int) -> None:
        """End a row after its first `count >= 1` units; called after a sync, for ends that only the host can see."""
        self.host.emitted[row], self.host.done[row] = count, True
        self.emitted[row], self.done[row] = count, True
        self.root[row] = self.history[row, self.prompt_length + count - 1]
        self._update_report()

    def _update_report(self) -> None:
        """Copy the counts to the report; when all rows are done, tell the noise source."""
        self.report.rows, self.report.emitted = self.rows, sum(self.host.emitted)
        if self.finished and not self.waits:
            self.source.finish(max(self.host.emitted))

    def output(self) -> list[Tensor]:
        """The emitted units of every row: `[emitted, *unit]` each."""
        most = max(self.host.emitted)
        # A copy, because the buffers of captured rounds serve later calls, too.
        longest = self.history[:, self.prompt_length : self.prompt_length + most].clone().unbind(0)
        return [row if n == most else row[:n] for row, n in zip(longest, self.host.emitted, strict=True)]
