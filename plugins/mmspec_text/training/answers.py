"""Answers as training data: one row for every answer, with all that was said before it; the answer alone is learnt.

A row is what the target is given when it answers, and the answer up to the token that ends it. It is read from its
beginning, as in use; rows that are longer than a sequence are cut to a piece in which the answer is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

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
