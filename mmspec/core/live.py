"""The state that a round changes: the rows' units and how far each row is, as tensors alone.

The functions are pure but for the history, which is written in place. They have no host sync and no shape that depends
on data, so that the eager loop and a captured round share them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmspec.core.distributions.distribution import Explaining, finite_nodes, take_nodes, where_nodes
from mmspec.core.transfer import on_device
from mmspec.core.types import Draft, Scores, Step, Verdict

ROOM = 2**16
"""Units a row for which there is room at first; a call that fills them gets twice as many, and so on."""

SMALLEST = 256


def bucket(places: int) -> int:
    """So many places of a buffer, rounded up to a power of two: few sizes, so that few rounds are compiled."""
    return max(SMALLEST, 1 << (places - 1).bit_length())


def with_room(history: Tensor, prompt: int, new: int, limit: int) -> Tensor:
    """The history with columns for at least `new` units (or `limit`) behind the prompt; the same one if it has them."""
    room = history.shape[1] - prompt - 1
    if room >= min(new, limit):
        return history
    more = min(limit, max(new, 2 * room)) - room
    larger = torch.cat([history, history.new_zeros(len(history), more, *history.shape[2:])], 1)
    larger[:, prompt + room] = 0  # it was the last one
    return larger


@dataclass(frozen=True)
class Live:
    """The rows of a call between two rounds; a captured round holds the numbers on the device, too."""

    history: Tensor  # `[batch, column, *unit]`: prompt, emitted units, room for more; the last column is scratch
    emitted: Tensor  # `[batch]` int64: units emitted so far, the root included
    root: Tensor  # `[batch, *unit]`: the last known unit
    done: Tensor  # `[batch]` bool: rows that are finished
    nonfinite: Tensor  # `[batch]` int64: the first new unit whose scores were not finite, or `NOWHERE`
    pads: Tensor  # `[batch]` int64: how many of the prompt's units are padding
    prompt_length: Tensor | int  # units of the prompt in `history`, padding included; a number, or int64 without axes
    limit: Tensor | int  # units wanted per row; likewise
    ends: Tensor  # `[n]` int64: unit ids that end a row
    context: int | None = None  # most units of a row, prompt included; None: no bound

    @classmethod
    def begin(
        cls,
        prompt: Tensor,
        pads: Tensor,
        limit: int,
        ends: int | Sequence[int] | None = None,
        context: int | None = None,
    ) -> "Live":
        """Rows behind their prompts `[batch, prompt, *unit]`, of which `pads [batch]` units are padding."""
        rows, length = prompt.shape[:2]
        history = torch.cat([prompt, prompt.new_zeros(rows, min(limit, ROOM) + 1, *prompt.shape[2:])], 1)
        zero, listed = torch.zeros_like(pads), [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
        nowhere, ended = torch.full_like(pads, NOWHERE), on_device(listed, prompt.device, torch.int64)
        root = history[:, max(length - 1, 0)]
        return cls(history, zero, root, zero.bool(), nowhere, pads, length, limit, ended, context)

    @property
    def known(self) -> Tensor:
        """Known units of `history`, the prompt and its padding included: `[batch]` int64."""
        return self.emitted + self.prompt_length

    @property
    def room(self) -> Tensor:
        """The depth of each row's drafts, within limit (the bonus unit excluded) and context: `[batch]`; 0 if done."""
        room = self.limit - self.emitted - 1
        if self.context is not None:
            room = torch.minimum(room, self.context - self.known + self.pads)
        return torch.where(self.done, 0, room.clamp(min=0))

    def checked(self, draft: Draft, scores: Scores, verdict: Verdict) -> "Live":
        """The first position of every row that is not finite is remembered."""
        where = first_nonfinite(draft, scores, verdict, self.emitted, self.done)
        return replace(self, nonfinite=torch.minimum(self.nonfinite, where))

    def appended(self, draft: Draft, verdict: Verdict, most: int | None = None) -> tuple["Live", Tensor]:
        """Emit the accepted path and one more unit, up to an end unit, the limit or `most`: rows, counts `[batch]`."""
        if not verdict.path.shape[1]:
            return self._appended_one(verdict.unit)
        slot = torch.arange(verdict.path.shape[1] + 1, device=self.emitted.device)
        path = take_nodes(draft.units, verdict.path.clamp(min=0))
        last = verdict.unit[:, None]
        new = where_nodes(slot < verdict.length[:, None], torch.cat([path, last], 1), last)
        count = torch.minimum(verdict.length + 1, self.limit - self.emitted)
        count = count if most is None else count.clamp(max=most)
        count = torch.where(self.done, 0, count)
        done = self.done
        if len(self.ends):
            ends = torch.isin(new, self.ends) & (slot < count[:, None])
            first = torch.where(ends.any(1), ends.int().argmax(1), len(slot))
            done = done | (first < len(slot))
            count = torch.minimum(count, first + 1)
        self._write(new, slot < count[:, None], self.known[:, None] + slot)
        latest = take_nodes(new, (count - 1).clamp(min=0)[:, None])[:, 0]
        return self._advanced(latest, count > 0, count, done), count

    def _appended_one(self, unit: Tensor) -> tuple["Live", Tensor]:
        """`appended` for rounds without a draft, at a fraction of the cost: every active row emits one unit."""
        active, done = ~self.done, self.done
        self._write(unit[:, None], active[:, None], self.known[:, None])
        if len(self.ends):
            done = done | torch.isin(unit, self.ends)
        return self._advanced(unit, active, active.long(), done), active.long()

    def _write(self, new: Tensor, kept: Tensor, where: Tensor) -> None:
        """Write units at `where`; those that are not kept go to the scratch column."""
        where = torch.where(kept, where, self.history.shape[1] - 1)
        shape = (*where.shape, *(1,) * (new.dim() - 2))
        self.history.scatter_(1, where.reshape(shape).expand_as(new), new)

    def _advanced(self, latest: Tensor, active: Tensor, count: Tensor, done: Tensor) -> "Live":
        root = torch.where(active.reshape(-1, *(1,) * (latest.dim() - 1)), latest, self.root)
        emitted = self.emitted + count
        return replace(self, root=root, emitted=emitted, done=done | (emitted >= self.limit))


NOWHERE = torch.iinfo(torch.int64).max
"""Position in rows where everything is finite."""


def first_nonfinite(draft: Draft, scores: Scores, verdict: Verdict, emitted: Tensor, done: Tensor) -> Tensor:
    """The first new unit of every row that is not finite, or whose scores are not: `[batch]` int64, or `NOWHERE`.

    Only the root and the accepted path count: plain decoding never sees the scores after a refused unit. A valid
    distribution may still draw a latent that is not finite, so latents are checked, too. No host sync. `emitted` and
    `done`, `[batch]`, are as before this round.
    """
    finite = scores.finite
    if verdict.drawn.is_floating_point():
        finite = finite & finite_nodes(verdict.drawn)
    if draft.nodes == 1:
        return torch.where(finite[:, 0] | done, NOWHERE, emitted)
    reached = torch.zeros(len(emitted), draft.nodes + 1, dtype=torch.bool, device=emitted.device)
    reached = reached.scatter_(1, verdict.path + 1, True)[:, 1:]
    reached[:, 0] = True
    bad = ~finite & ~done[:, None] & reached
    return torch.where(bad, emitted[:, None] + draft.index.depth, NOWHERE).amin(1)


def nonfinite_message(step: Step | None, row: int, position: int, emitted: int) -> str:
    """The fault of new unit `position` of a row that was drawn in `step`, as its distribution explains it.

    `emitted` is the number of units that the row has emitted, this round's included.
    """
    if step is not None and isinstance(step.scores.distribution, Explaining):
        node = position - (emitted - int(step.count[row]))  # such distributions are drafted for in chains
        drawn = step.verdict.drawn
        fault = step.scores.distribution.fault(drawn, row, node) if 0 <= node < drawn.shape[1] else ""
        if fault:
            return f"new unit {position}: {fault}"
    return f"the target's scores of new unit {position} are NaN or all -inf"
