"""A grammar small enough to follow by hand: a table of states, each with the units that it allows."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Table = Sequence[Mapping[int, int]]
"""For every state the units that are allowed, and the state behind each; -1: the text has ended."""


class Steps:
    """A matcher that counts how often it was moved.

    Args:
        table: The states; a text begins in the first one.
        vocab: Number of ids.
    """

    def __init__(self, table: Table, vocab: int) -> None:
        self.table, self.vocab, self.path, self.moves = table, vocab, [0], 0

    def accept(self, unit: int) -> bool:
        here = self.path[-1]
        if here < 0 or unit not in self.table[here]:
            return False
        self.path.append(self.table[here][unit])
        self.moves += 1
        return True

    def allowed(self) -> Tensor | None:
        if self.path[-1] < 0:
            return None
        return torch.zeros(self.vocab).index_fill(0, torch.tensor([*self.table[self.path[-1]]]), 1).bool()


class Returning(Steps):
    """One that can go back."""

    def rollback(self, count: int) -> None:
        del self.path[len(self.path) - count :]
        self.moves += count


CALL: Table = [dict.fromkeys(range(40, 60), 1) | {9: 4}, {7: 2}, {8: 3}, {20: 0, 30: 0}, {17: -1}]
"""A choice of twenty, 7, 8, then 20 or 30, and so on; or, in place of the first choice, 9 and the end 17."""
