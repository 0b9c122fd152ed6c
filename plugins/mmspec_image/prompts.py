"""Prompts as ids, for pictures that a language model draws."""

from typing import NamedTuple

from torch import Tensor


class Ids(NamedTuple):
    """Prompts as ids, padded on the left.

    Attributes:
        ids: `[row, prompt]` int64.
        mask: `[row, prompt]` int64: 0 at padding.
    """

    ids: Tensor
    mask: Tensor

    def repeated(self, times: int) -> "Ids":
        """Every row `times` times; the rows of a prompt stay together."""
        return Ids(*(part.repeat_interleave(times, 0) for part in self))

    def to(self, device: object) -> "Ids":
        """The same on a device."""
        return Ids(self.ids.to(device), self.mask.to(device))
