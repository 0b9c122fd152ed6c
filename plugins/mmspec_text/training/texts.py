"""Texts that a drafter is trained on, and the batches cut from them.

The target's own text is what a drafter meets when it is used, and text of other authors keeps it from learning the
target's habits alone: a recipe mixes sources by their shares.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec_text.training.answers import Answers
from mmspec_text.training.batch import LEAST, Batch


@dataclass(frozen=True)
class Stream:
    """A source: a text as one row of units, all of which are learnt; it is cut anywhere."""

    units: Tensor  # `[unit]` int64
    share: float  # the expected share of its sequences among all that are cut

    def __len__(self) -> int:
        return len(self.units)

    @property
    def learnt(self) -> Tensor:
        """`[unit]` int64: the units that a drafter learns, each as often as it is there."""
        return self.units

    @property
    def parts(self) -> Sequence[Tensor]:
        """All that it holds, for a digest."""
        return (self.units,)

    def pieces(self, length: int) -> int | None:
        """The number of different sequences that can be cut from it; None: too many to count, it is cut anywhere."""
        return None

    def sequences(self, length: int) -> float:
        """The number of sequences of at most so many units that it makes, each unit in one of them."""
        return len(self.units) / length

    def cut(self, length: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
        """A sequence of at most so many units, `[unit]`, and behind which of them drafts count, `[unit]` bool."""
        start = int(torch.randint(len(self.units) - length + 1, (), generator=g))
        ids = self.units[start : start + length]
        return ids, torch.ones_like(ids, dtype=torch.bool)


Source = Stream | Answers
"""A part of what a drafter is trained on."""


@dataclass(frozen=True)
class Texts:
    """Sources, and the size of a batch."""

    sources: Sequence[Source]  # the sources; a stream is longer than a sequence
    rows: int  # sequences of a batch
    length: int  # most units of a sequence
    seed: int  # of the places that are cut
    device: Any = "cpu"  # the device of batches

    def batch_at(self, step: int) -> Batch:
        """The batch of a step: a function of the step alone."""
        seed = self.seed * 1_000_003 + step
        g = torch.Generator().manual_seed(seed)
        shares = torch.tensor([source.share for source in self.sources])
        drawn = torch.multinomial(shares, self.rows, replacement=True, generator=g).tolist()
        cuts = [self.sources[which].cut(self.length, g) for which in drawn]
        return Batch.padded(cuts, seed, min(LEAST, self.length)).to(self.device)

    @property
    def epoch(self) -> int:
        """Steps in which about as many sequences are read as there are."""
        return max(1, round(sum(source.sequences(self.length) for source in self.sources) / self.rows))

    @property
    def pieces(self) -> int | None:
        """The number of different sequences; None: they are cut anywhere."""
        each = [source.pieces(self.length) for source in self.sources]
        return None if None in each else sum(filter(None, each))
