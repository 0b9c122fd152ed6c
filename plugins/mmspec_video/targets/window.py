"""The frames that the next frame attends to, and their keys."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions import take_nodes
from mmspec_video.models.keys import Pair, concatenated, select_frames


@dataclass(frozen=True)
class Window:
    """Frames of every row, the latest in the last slot; shorter rows begin with empty slots."""

    frames: Tensor  # `[row, slot, channel, height, width]`
    actions: Tensor  # `[row, slot]` int64: the action that led to each frame
    filled: Tensor  # `[row, slot]` bool: False in empty slots
    number: Tensor  # `[row]` int64: number of the frame that comes next
    fullest: int  # frames of the fullest row, on the host
    keys: Sequence[Pair] | None = None  # of the frames, layer by layer; None: not computed, or outdated

    @property
    def slots(self) -> int:
        """Slots, empty ones included."""
        return self.frames.shape[1]

    @property
    def position(self) -> Tensor:
        """Numbers of the frames: `[row, slot]`."""
        return self.number[:, None] + torch.arange(-self.slots, 0, device=self.number.device)

    def repeated(self, times: int) -> "Window":
        """Every row `times` times, copies of a row together."""
        if times == 1:
            return self
        every = torch.arange(len(self.number), device=self.number.device).repeat_interleave(times)
        return self._taken(every, self.fullest)

    def rows(self, rows: Tensor) -> "Window":
        """The rows `[n]` of the window."""
        return self._taken(rows, int(self.filled[rows].sum(1).max()))

    def _taken(self, rows: Tensor, fullest: int) -> "Window":
        filled = self.filled[rows]
        keys = None if self.keys is None else [(k[rows], v[rows]) for k, v in self.keys]
        return Window(self.frames[rows], self.actions[rows], filled, self.number[rows], fullest, keys)

    def extended(
        self,
        frames: Tensor,
        actions: Tensor,
        keys: Sequence[Pair] | None,
        count: Tensor,
        *,
        longest: int,
        most: int,
        expire: bool,
    ) -> "Window":
        """The window with more frames at its end: `[row, n, channel, height, width]`, their actions `[row, n]`, and
        their keys and values; None: not computed.

        Each row takes the first `count [row]` of the frames, `longest` at most, which is on the host. Of more than
        `most` slots the oldest are dropped. With `expire`, all keys are dropped once a frame has left, because keys of
        later frames depend on that frame.
        """
        fullest, slots = self.fullest + longest, min(self.slots + longest, most)
        source = torch.arange(slots, device=count.device) + (self.slots + count[:, None]) - slots
        filled = torch.cat([self.filled, torch.ones_like(actions, dtype=torch.bool)], 1)
        at = source.clamp(min=0)
        merged = None
        if self.keys is not None and keys is not None and not (expire and fullest > most):
            merged = select_frames(concatenated(self.keys, keys), at)
        return Window(
            take_nodes(torch.cat([self.frames, frames], 1), at),
            take_nodes(torch.cat([self.actions, actions], 1), at),
            filled.gather(1, at) & (source >= 0),
            self.number + count,
            min(fullest, most),
            merged,
        )
