"""The texts that a drafter is trained on: sources, the sequences that are cut from them, and the batch of a step.

The target's own text is what a drafter meets when it is used, and text of other authors keeps it from learning the
target's habits alone: a recipe mixes sources by their shares. Of an answer there is one row, with all that was said
before it, read from its beginning, as in use; the answer alone is learnt, up to the token that ends it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
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
    number: int = 0  # of the batches before it in the run

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
        return replace(self, ids=self.ids.to(device), counted=self.counted.to(device))

    def apart(self) -> Iterator["Batch"]:
        """Its sequences one by one."""
        for ids, counted in zip(self.ids.split(1), self.counted.split(1), strict=True):
            yield replace(self, ids=ids, counted=counted)


TAIL = 16
"""Padding behind an answer: a row of a head has a whole draft behind it, so its last units are learnt at all depths."""


def tail(length: int) -> int:
    """The padding of a sequence of at most so many units."""
    return min(TAIL, length // 2)


@dataclass(frozen=True)
class Answer:
    """One row."""

    ids: Tensor  # `[unit]` int64
    given: int  # units before the answer, at least one; the answer has the others, at least one

    @property
    def counted(self) -> Tensor:
        """`[unit]` bool: the units behind which a unit of the answer follows."""
        place = torch.arange(len(self.ids))
        return (place >= self.given - 1) & (place < len(self.ids) - 1)

    def starts(self, length: int) -> list[int]:
        """Where pieces of at most so many units begin: each has units of the answer, and all are learnt in some."""
        own = length - tail(length)
        last = max(0, len(self.ids) - own)
        return [*range(min(last, max(0, self.given + 1 - own)), last, own - 1), last]

    def piece(self, start: int, length: int) -> tuple[Tensor, Tensor]:
        """At most so many units, `[unit]`, and behind which of them drafts count, `[unit]` bool; the tail included."""
        stop, more = start + length - tail(length), tail(length)
        return pad(self.ids[start:stop], (0, more)), pad(self.counted[start:stop][:-1], (0, more + 1))


@dataclass(frozen=True)
class Answers:
    """A source of answers, each as likely as any other; see `texts.Stream` for its members."""

    rows: Sequence[Answer]
    share: float

    def __len__(self) -> int:
        return sum(len(row.ids) for row in self.rows)

    @cached_property
    def learnt(self) -> Tensor:
        return torch.cat([row.ids[row.given :] for row in self.rows])

    @property
    def parts(self) -> Sequence[Tensor]:
        return (*(row.ids for row in self.rows), torch.tensor([row.given for row in self.rows]))

    def pieces(self, length: int) -> int:
        return sum(len(row.starts(length)) for row in self.rows)

    def sequences(self, length: int) -> float:
        return len(self.rows)

    def cut(self, length: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
        row = self.rows[int(torch.randint(len(self.rows), (), generator=g))]
        starts = row.starts(length)
        return row.piece(starts[int(torch.randint(len(starts), (), generator=g))], length)

    def last_pieces(self, length: int) -> list[tuple[Tensor, Tensor]]:
        """The last units of every row, at most so many; as `cut` returns them."""
        return [row.piece(row.starts(length)[-1], length) for row in self.rows]


def sheet(rows: Sequence[Answer]) -> Tensor:
    """Answers as one tensor that can be stored: `[row, 1 + unit]` int64; first what is given, -1 behind the units."""
    return pad_sequence([pad(row.ids, (1, 0), value=row.given) for row in rows], True, -1)


def of_sheet(filled: Tensor) -> list[Answer]:
    """The answers of a `sheet`."""
    return [Answer(line[1:][line[1:] >= 0], int(line[0])) for line in filled]


def prompts_of(rows: Sequence[Tensor]) -> Tensor:
    """Prompts `[unit]` of any lengths as `[row, unit]` int64, with -1 before the shorter ones."""
    return pad_sequence(list(rows), True, -1, "left")


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
        return replace(Batch.padded(cuts, seed, min(LEAST, self.length)), number=step).to(self.device)

    @property
    def epoch(self) -> int:
        """Steps in which about as many sequences are read as there are."""
        return max(1, round(sum(source.sequences(self.length) for source in self.sources) / self.rows))

    @property
    def pieces(self) -> int | None:
        """The number of different sequences; None: they are cut anywhere."""
        each = [source.pieces(self.length) for source in self.sources]
        return None if None in each else sum(filter(None, each))
