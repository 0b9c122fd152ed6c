"""One call's rows: their units, how far each row is, and the noise it draws from.

Device tensors are authoritative; `host_emitted` and `host_done` are copies, refreshed by a round's one host sync.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.distribution import take_nodes, where_nodes
from mmspec.core.history import begun, ends_of, with_room
from mmspec.core.history_processors import Prefix
from mmspec.core.kept_depth import KeptDepth
from mmspec.core.noise import Round, Source
from mmspec.core.nonfinite import NOWHERE, first_nonfinite, nonfinite_message
from mmspec.core.report import Report
from mmspec.core.types import Draft, Prefill, Scores, Step, Verdict
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
        limit: Units wanted per row.
        ends: `[n]` int64: unit ids that end a row.
        source: The call's noise.
        warp: Turns scores into distributions.
        report: Counts and times.
        context: Most units of a row that the target supports, prompt included: no draft goes beyond. None: no bound.
        memory: The drafter's memory of this call (from `Drafter.start`); only the drafter reads it.
        step: The last settled round; after prefill, that of a draft of the root alone.
        host_emitted: `emitted`, on the host.
        host_done: `done`, on the host.
        host_pads: `pads`, on the host.
        width: Most nodes of a draft that the cache was made for, the root included.
        k: Most units per path of a draft: `width` is that of drafts with this budget.
        depth: How deep the next draft may be, after what a policy kept of the last one.
        drafting: Whether the rest of the call may have drafts.
        fixed: Whether every pass has `width` nodes.
    """

    cache: Any
    history: Tensor
    prompt_length: int
    pads: Tensor
    emitted: Tensor
    root: Tensor
    done: Tensor
    limit: int
    ends: Tensor
    source: Source
    warp: Warp
    report: Report
    context: int | None = None
    memory: Any = None
    step: Step | None = None
    host_emitted: list[int] = field(default_factory=list)
    host_done: list[bool] = field(default_factory=list)
    host_pads: list[int] = field(default_factory=list)
    width: int = 1
    k: int = 0
    drafting: bool = True
    fixed: bool = False
    depth: KeptDepth = field(default_factory=lambda: KeptDepth(0, 0))
    _nonfinite: Tensor | None = None
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
            limit=limit,
            ends=ends_of(ends, prompt.device),
            source=source,
            warp=warp,
            report=report,
            context=context,
            host_emitted=[0] * rows,
            host_done=[False] * rows,
            host_pads=pads.tolist(),
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
        room = self.limit - self.emitted - 1
        if self.context is not None:
            room = torch.minimum(room, self.context - self.known + self.pads)
        return torch.where(self.done, 0, room.clamp(min=0))

    @property
    def most_room(self) -> int:
        """The largest `room` of any row, from the host's copies."""
        context = self.context if self.context is not None else self.prompt_length + self.limit
        rooms = [
            min(self.limit - emitted - 1, context - (self.prompt_length - pads + emitted))
            for emitted, pads, done in zip(self.host_emitted, self.host_pads, self.host_done, strict=True)
            if not done
        ]
        return max(rooms, default=0)

    @property
    def finished(self) -> bool:
        """Whether every row was done at the last sync."""
        return all(self.host_done)

    def round(self) -> Round:
        """The noise of the current round."""
        active = [n for n, done in zip(self.host_emitted, self.host_done, strict=True) if not done]
        # Finished rows follow the slowest active row (their draws are not read): buffered noise can then be dropped.
        slowest = min(active, default=0)
        host_emitted = [slowest if done else n for n, done in zip(self.host_emitted, self.host_done, strict=True)]
        return Round(self.source, self.emitted, host_emitted)

    def append(self, draft: Draft, verdict: Verdict, most: int | None = None) -> Tensor:
        """Emit the accepted path and one more unit, up to an end unit, the limit or `most`: counts, `[batch]`."""
        self._unsynced += verdict.path.shape[1] + 1
        most_emitted = max(self.host_emitted) + self._unsynced
        self.history = with_room(self.history, self.prompt_length, most_emitted, self.limit)
        if not verdict.path.shape[1]:
            return self._append_one(verdict.unit)
        slot = torch.arange(verdict.path.shape[1] + 1, device=self.emitted.device)
        path = take_nodes(draft.units, verdict.path.clamp(min=0))
        last = verdict.unit[:, None]
        new = where_nodes(slot < verdict.length[:, None], torch.cat([path, last], 1), last)
        count = torch.minimum(verdict.length + 1, self.limit - self.emitted)
        count = count if most is None else count.clamp(max=most)
        count = torch.where(self.done, 0, count)
        if len(self.ends):
            ends = torch.isin(new, self.ends) & (slot < count[:, None])
            first = torch.where(ends.any(1), ends.int().argmax(1), len(slot))
            self.done |= first < len(slot)
            count = torch.minimum(count, first + 1)
        self._write(new, slot < count[:, None], self.known[:, None] + slot)
        latest = take_nodes(new, (count - 1).clamp(min=0)[:, None])[:, 0]
        return self._advance(latest, count > 0, count)

    def _append_one(self, unit: Tensor) -> Tensor:
        """`append` for rounds without a draft, at a fraction of the cost: every active row emits one unit."""
        active = ~self.done
        self._write(unit[:, None], active[:, None], self.known[:, None])
        if len(self.ends):
            self.done = self.done | torch.isin(unit, self.ends)
        return self._advance(unit, active, active.long())

    def _write(self, new: Tensor, kept: Tensor, where: Tensor) -> None:
        """Write units at `where`; those that are not kept go to the scratch column."""
        where = torch.where(kept, where, self.history.shape[1] - 1)
        shape = (*where.shape, *(1,) * (new.dim() - 2))
        self.history.scatter_(1, where.reshape(shape).expand_as(new), new)

    def _advance(self, latest: Tensor, active: Tensor, count: Tensor) -> Tensor:
        self.root = torch.where(active.reshape(-1, *(1,) * (latest.dim() - 1)), latest, self.root)
        self.emitted = self.emitted + count
        self.done = self.done | (self.emitted >= self.limit)
        return count

    def note_nonfinite(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """Remember, on the device, the first position of every row that is not finite; `sync` raises."""
        where = first_nonfinite(draft, scores, verdict, self.emitted, self.done)
        self._nonfinite = where if self._nonfinite is None else torch.minimum(self._nonfinite, where)

    def sync(self) -> None:
        """The one host sync of a round: how many units every row has, and whether it is done.

        When all rows are done, the noise source is left as plain decoding would leave it.

        Raises:
            ValueError: Scores were NaN or all -inf, or a latent was not finite; names row and position.
        """
        assert self._nonfinite is not None
        numbers = [self.emitted, self.done.long(), self._nonfinite, *self.depth.wanted()]
        emitted, done, nonfinite, *kept = torch.stack(numbers).tolist()
        for row, position in enumerate(nonfinite):
            if position != NOWHERE:
                fault = nonfinite_message(self.step, row, position, emitted[row])
                raise ValueError(f"row {row}: {fault}; check the weights, the dtype and the logits processors")
        self.host_emitted, self.host_done = emitted, [bool(d) for d in done]
        self._unsynced = 0
        self.depth.arrived(kept)
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
        if self.finished:
            self.source.finish(max(self.host_emitted))

    def output(self) -> list[Tensor]:
        """The emitted units of every row: `[emitted, *unit]` each."""
        return [self.history[b, self.prompt_length : self.prompt_length + n] for b, n in enumerate(self.host_emitted)]
