"""Bounds of a call's drafts, and of the next one after what a policy kept of the last one.

On the CPU refused nodes are cut from a draft before it is verified. Elsewhere reading how many are kept would be a
wait. There the number comes with the round's one sync, and bounds the *next* draft: one node deeper than what was kept,
or twice as deep if all was. So a draft model makes fewer passes while it is unsure. Under a fixed width passes of the
target stay as wide as they are.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.types import Draft


@dataclass
class Budget:
    """The bounds of a call's drafts."""

    k: int  # most units per path
    width: int  # most nodes that the cache was made for, the root included
    fixed: bool = False  # whether every pass has `width` nodes
    drafting: bool = True  # whether the rest of the call may have drafts
    _most: int | None = None
    _asked: int = 0
    _kept: Tensor | None = None

    @property
    def most(self) -> int:
        """Most units per path of the next draft."""
        return self.k if self._most is None else self._most

    def note(self, draft: Draft, done: Tensor) -> None:
        """Remember, on the device, how deep a draft is that a policy trimmed, in rows that are not `done [batch]`.

        The draft is not rooted yet. On the CPU nothing is remembered.
        """
        if draft.units.device.type != "cpu" and draft.units.shape[1]:
            kept = (draft.index.depth[:, 1:] * draft.valid).amax(1)
            self._kept, self._asked = torch.where(done, 0, kept), draft.index.deepest

    def wanted(self) -> list[Tensor]:
        """The tensors that the next sync has to read for `arrived`: `[batch]` int64, or none."""
        return [] if self._kept is None else [self._kept]

    def arrived(self, read: list[list[int]]) -> None:
        """Bound the next draft by what a sync read."""
        for kept in read:
            deepest, self._kept = max(kept), None
            self._most = min(self.k, 2 * self._asked if deepest >= self._asked else deepest + 1)
