"""The frames that the next one sees, and their keys."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions import take_nodes
from mmspec_video.models.keys import Pair, joined, taken


@dataclass(frozen=True)
class Window:
    """Frames of every row, the latest in the last slot; rows that have fewer begin with empty slots.

    Attributes:
        frames: `[row, slot, channel, height, width]`.
        actions: `[row, slot]` int64: what led to each.
        there: `[row, slot]` bool: False in empty slots.
        number: `[row]` int64: of the frame that comes next.
        held: Frames of the fullest row, known on the host.
        keys: Of the frames, layer by layer; None: not known (any more).
    """

    frames: Tensor
    actions: Tensor
    there: Tensor
    number: Tensor
    held: int
    keys: Sequence[Pair] | None = None

    @property
    def slots(self) -> int:
        """Slots, the empty ones included."""
        return self.frames.shape[1]

    @property
    def position(self) -> Tensor:
        """Numbers of the frames: `[row, slot]`."""
        return self.number[:, None] + torch.arange(-self.slots, 0, device=self.number.device)

    def repeated(self, times: int) -> "Window":
        """Every row so many times, its copies together."""
        if times == 1:
            return self
        frames, actions, there, number = (
            t.repeat_interleave(times, 0) for t in (self.frames, self.actions, self.there, self.number)
        )
        keys = self.keys
        if keys is not None:
            keys = [(k.repeat_interleave(times, 0), v.repeat_interleave(times, 0)) for k, v in keys]
        return Window(frames, actions, there, number, self.held, keys)

    def then(
        self,
        frames: Tensor,
        actions: Tensor,
        keys: Sequence[Pair] | None,
        count: Tensor,
        longest: int,
        most: int,
        forget: bool,
    ) -> "Window":
        """With more frames behind.

        Args:
            frames: `[row, n, channel, height, width]`.
            actions: `[row, n]`.
            keys: Of these frames; None: they are not known.
            count: `[row]`: how many of them a row takes, the first ones.
            longest: The largest of `count`, on the host.
            most: Slots at most: the oldest frames leave.
            forget: Once a frame has left, keys of later ones, which have seen it, count no more.
        """
        held, slots = self.held + longest, min(self.slots + longest, most)
        source = torch.arange(slots, device=count.device) + (self.slots + count[:, None]) - slots
        there = torch.cat([self.there, torch.ones_like(actions, dtype=torch.bool)], 1)
        at = source.clamp(min=0)
        merged = None
        if self.keys is not None and keys is not None and not (forget and held > most):
            merged = taken(joined(self.keys, keys), at)
        return Window(
            take_nodes(torch.cat([self.frames, frames], 1), at),
            take_nodes(torch.cat([self.actions, actions], 1), at),
            there.gather(1, at) & (source >= 0),
            self.number + count,
            min(held, most),
            merged,
        )
