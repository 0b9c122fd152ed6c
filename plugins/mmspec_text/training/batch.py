"""The sequences of one step of training, and which of their units a drafter learns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

LEAST = 32
"""Units of the shortest batch, padding included: drafts of any depth under training have a row in it."""


@dataclass(frozen=True)
class Batch:
    """Sequences of a step."""

    ids: Tensor  # `[sequence, unit]` int64, padded at the right, where causal models do not see it
    # `[sequence, unit]` bool: the units behind which a draft is compared with the target (the loss mask, moved by one:
    # the next unit is one that the target is to write)
    counted: Tensor
    seed: int = 0  # of what else is drawn in the step

    @staticmethod
    def whole(ids: Tensor, seed: int = 0) -> "Batch":
        """Sequences of one length, of which every unit counts."""
        return Batch(ids, torch.ones_like(ids, dtype=torch.bool), seed)

    @staticmethod
    def padded(cuts: Sequence[tuple[Tensor, Tensor]], seed: int = 0, least: int = 0) -> "Batch":
        """Sequences of any lengths.

        A cut is a sequence's units and which of them count, `[unit]` each. The batch has at least `least` units;
        padding counts nowhere.
        """
        longest = max(least, *(len(ids) for ids, _ in cuts))
        ids = pad_sequence([ids for ids, _ in cuts], batch_first=True)
        counted = pad_sequence([counted for _, counted in cuts], batch_first=True)
        more = (0, longest - ids.shape[1])
        return Batch(torch.nn.functional.pad(ids, more), torch.nn.functional.pad(counted, more), seed)

    def to(self, device: Any) -> "Batch":
        """The same on a device."""
        return Batch(self.ids.to(device), self.counted.to(device), self.seed)

    def apart(self) -> Iterator["Batch"]:
        """Its sequences one by one."""
        for ids, counted in zip(self.ids.split(1), self.counted.split(1), strict=True):
            yield Batch(ids, counted, self.seed)
