"""One call's rows: their units, how far each row is, and the noise it draws from.

Device tensors are authoritative; `host_emitted` and `host_done` are copies, refreshed by a round's one host sync.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec.core.history import begun, ends_of, with_room
from mmspec.core.history_processors import Prefix
from mmspec.core.kept_depth import KeptDepth
from mmspec.core.live import Live
from mmspec.core.noise import Round, Source
from mmspec.core.nonfinite import NOWHERE, nonfinite_message
from mmspec.core.report import Report
from mmspec.core.types import Prefill, Step
from mmspec.core.warp import Warp


@dataclass
class State:
    """The rows of one call.

    Attributes:
        cache: The target's cache of this call (from `Target.start`); only the target reads it.
        history: `[batch, column, *unit]`: prompt, emitted units, room for more; the last column is scratch.
        prompt_length: Length of the prompt in `history`, the same for all rows (shorter prompts are padded on the
            left).
        pads: `[batch]` int64: how many of the prompt's units are padding.
        emitted: `[batch]` int64: units emitted so far, the root included.
        root: `[batch, *unit]`: the last known unit; the target's cache does not hold it yet.
        done: `[batch]` bool: rows that are finished.
        nonfinite: `[batch]` int64: the first new unit whose scores were not finite, or `nonfinite.NOWHERE`.
        limit: Units wanted per row.
        pause: Units at which every row waits for the others (`Decoder.rounds`); None: nowhere.
        ends: `[n]` int64: unit ids that end a row.
        source: The call's noise.
        warp: Turns scores into distributions.
        report: Counts and times.
        context: Most units of a row that the target supports, prompt included: no draft goes beyond. None: no bound.
        hidden: The prompt's hidden states as in `Prefill`, until the drafter has begun; then None.
        memory: The drafter's memory of this call (from `Drafter.start`); only the drafter reads it.
        step: The last settled round; after prefill, that of a draft of the root alone.
        host_emitted: `emitted`, on the host.
        host_done: `done`, on the host.
        host_pads: `pads`, on the host; empty before the first sync.
        width: Most nodes of a draft that the cache was made for, the root included.
        k: Most units per path of a draft: `width` is that of drafts with this budget.
        depth: How deep the next draft may be, after what a policy kept of the last one.
        drafting: Whether the rest of the call may have drafts.
        fixed: Whether every pass has `width` nodes.
        captured: The captured round that runs this call (`mmspec.core.capture`); None: the eager loop does.
        eager: Whether it is settled that the eager loop runs this call.
        stale: Whether something changed from outside that captured rounds bake in, such as a guidance scale.
    """

    cache: Any
    history: Tensor
    prompt_length: int
    pads: Tensor
    emitted: Tensor
    root: Tensor
    done: Tensor
    nonfinite: Tensor
    limit: int
    ends: Tensor
    source: Source
    warp: Warp
    report: Report
    context: int | None = None
    pause: int | None = None
    hidden: Tensor | None = None
    memory: Any = None
    step: Step | None = None
    host_emitted: list[int] = field(default_factory=list)
    host_done: list[bool] = field(default_factory=list)
    host_pads: list[int] = field(default_factory=list)
    width: int = 1
    k: int = 0
    drafting: bool = True
    fixed: bool = False
    captured: Any = None
    eager: bool = False
    stale: bool = False
    depth: KeptDepth = field(default_factory=lambda: KeptDepth(0, 0))
    _unsynced: int = 0

    @classmethod
    def begin(
        cls,
        started: Prefill,
        limit: int,
        context: int | None,
        ends: int | Sequence[int] | None,
        source: Source,
        warp: Warp,
        report: Report,
        width: int = 1,
        k: int = 0,
    ) -> "State":
        """The state after prefill: the prompt is known, nothing is emitted, the root is the prompt's last unit."""
        prompt, pads = started.prompt, started.pads
        rows, prompt_length = prompt.shape[:2]
        history = begun(prompt, limit)
        zero = torch.zeros_like(pads)
        return cls(
            cache=started.cache,
            history=history,
            prompt_length=prompt_length,
            pads=pads,
            emitted=zero,
            root=history[:, max(prompt_length - 1, 0)],
            done=zero.bool(),
            nonfinite=torch.full_like(pads, NOWHERE),
            limit=limit,
            ends=ends_of(ends, prompt.device),
            source=source,
            warp=warp,
            report=report,
            context=context,
            hidden=started.hidden,
            host_emitted=[0] * rows,
            host_done=[False] * rows,
            width=width,
            k=k,
            depth=KeptDepth(k, k),
        )

    @property
    def rows(self) -> int:
        """Rows of the batch."""
        return len(self.emitted)

    @property
    def known(self) -> Tensor:
        """Known units of `history`, the prompt and its padding included: `[batch]` int64."""
        return self.emitted + self.prompt_length

    @property
    def prefix(self) -> Prefix:
        """The known units, for the warp."""
        return Prefix(self.history, [self.prompt_length + n for n in self.host_emitted], self.emitted)

    @property
    def room(self) -> Tensor:
        """How deep each row may draft, within limit (the bonus unit excluded) and context: `[batch]`; 0 if done."""
        return self.live.room

    @property
    def most_room(self) -> int:
        """The largest `room` of any row, from the host's copies."""
        context = self.context if self.context is not None else self.prompt_length + self.limit
        rooms = [
            min(self.reach - emitted - 1, context - (self.prompt_length - pads + emitted))
            for emitted, pads, done in zip(self.host_emitted, self.host_pads, self.host_done, strict=True)
            if not done
        ]
        return max(rooms, default=0)

    @property
    def reach(self) -> int:
        """Units per row up to which rounds go: to the limit, or the next pause."""
        return self.limit if self.pause is None else min(self.limit, self.pause)

    @property
    def finished(self) -> bool:
        """Whether every row was done, or waited at a pause, at the last sync."""
        return all(self.host_done)

    @property
    def waits(self) -> bool:
        """Whether the call stands at a pause."""
        return self.finished and self.reach < self.limit

    def go_on(self, pause: int | None) -> None:
        """Run up to the next pause, or to the end. Every row waits at the one before, is done, or has just begun."""
        before, self.pause = self.reach, pause
        ended = torch.isin(self.root, self.ends) if len(self.ends) else torch.zeros_like(self.done)
        waited = (self.emitted == before) & ~ended
        done = (self.done & ~waited) | (self.emitted >= self.reach)
        if self.captured is None:
            self.done = done
        else:  # the round has the rows in its buffers
            self.done.copy_(done)
            self.captured.live.limit.fill_(self.reach)
        self.host_done = done.tolist()
        self._update_report()

    def round(self) -> Round:
        """The noise of the current round."""
        active = [n for n, done in zip(self.host_emitted, self.host_done, strict=True) if not done]
        # Finished rows follow the slowest active row (their draws are not read): buffered noise can then be dropped.
        slowest = min(active, default=0)
        host_emitted = [slowest if done else n for n, done in zip(self.host_emitted, self.host_done, strict=True)]
        return Round(self.source, self.emitted, host_emitted)

    @property
    def live(self) -> Live:
        """What a round changes."""
        return Live(
            self.history,
            self.emitted,
            self.root,
            self.done,
            self.nonfinite,
            self.pads,
            self.prompt_length,
            self.reach,
            self.ends,
            self.context,
        )

    def take(self, live: Live) -> None:
        """Go on from `live`, this call's rows after a round."""
        self.emitted, self.root, self.done, self.nonfinite = live.emitted, live.root, live.done, live.nonfinite

    def reserve(self, units: int) -> None:
        """Make room in the history for at most so many units more per row; called before they are appended."""
        self._unsynced += units
        most_emitted = max(self.host_emitted) + self._unsynced
        self.history = with_room(self.history, self.prompt_length, most_emitted, self.limit)

    def sync(self) -> None:
        """The one host sync of a round: how many units every row has, and whether it is done.

        When all rows are done, the noise source is left as plain decoding would leave it.

        Raises:
            ValueError: Scores were NaN or all -inf, or a latent was not finite; names row and position.
        """
        self.arrived(self.counts().tolist())

    def counts(self) -> Tensor:
        """What the host wants to know after a round: `[number, batch]` int64, for `arrived`."""
        first = () if self.host_pads else (self.pads,)
        return torch.stack([self.emitted, self.done.long(), self.nonfinite, *first, *self.depth.wanted()])

    def arrived(self, counts: list[list[int]]) -> None:
        """Take `counts` that are on the host now.

        Raises:
            ValueError: As `sync`.
        """
        emitted, done, nonfinite, *more = counts
        if not self.host_pads:
            self.host_pads = more.pop(0)
        for row, position in enumerate(nonfinite):
            if position != NOWHERE:
                fault = nonfinite_message(self.step, row, position, emitted[row])
                raise ValueError(f"row {row}: {fault}; check the weights, the dtype and the logits processors")
        self.host_emitted, self.host_done = emitted, [bool(d) for d in done]
        self._unsynced = 0
        self.depth.arrived(more)
        self._update_report()

    def stop(self, row: int, count: int) -> None:
        """End a row after its first `count >= 1` units; called after a sync, for ends that only the host can see."""
        self.host_emitted[row], self.host_done[row] = count, True
        self.emitted[row], self.done[row] = count, True
        self.root[row] = self.history[row, self.prompt_length + count - 1]
        self._update_report()

    def _update_report(self) -> None:
        """Copy the counts to the report; when all rows are done, tell the noise source."""
        self.report.rows, self.report.emitted = self.rows, sum(self.host_emitted)
        if self.finished and not self.waits:
            self.source.finish(max(self.host_emitted))

    def output(self) -> list[Tensor]:
        """The emitted units of every row: `[emitted, *unit]` each."""
        most = max(self.host_emitted)
        longest = self.history[:, self.prompt_length : self.prompt_length + most].unbind(0)
        rows = [row if n == most else row[:n] for row, n in zip(longest, self.host_emitted, strict=True)]
        return [row.clone() for row in rows] if self.captured is not None else rows  # buffers serve later calls, too
