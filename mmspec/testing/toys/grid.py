"""Toy image: a grid of codes in raster order; each depends on the codes to its left and above, and on a class."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.types import Draft, Raw, Started


@dataclass
class Memory:
    """What a call knows.

    Attributes:
        codes: `[batch, capacity]`: committed codes, then scratch.
        length: `[batch]`: how many are committed.
        kind: `[batch]`: the class of each row.
    """

    codes: Tensor
    length: Tensor
    kind: Tensor


class GridTarget:
    """p(code | left, above, class) from a table. Outside of the grid stands the code `vocab`.

    Args:
        width: Codes per row of the grid.
        table: `[class, vocab + 1, vocab + 1, vocab]` logits by left and above; the last class is the unconditional one.
    """

    offers = frozenset({"discrete", "truncate"})

    def __init__(self, width: int, table: Tensor) -> None:
        self.width = width
        self.table = table
        self.vocab: int | None = table.shape[-1]

    @classmethod
    def random(cls, width: int, vocab: int, seed: int, classes: int = 2, sharpness: float = 1.5) -> "GridTarget":
        """Gaussian logits."""
        generator = torch.Generator().manual_seed(seed)
        table = torch.randn(classes + 1, vocab + 1, vocab + 1, vocab, generator=generator)
        return cls(width, table * sharpness)

    def start(self, inputs: Tensor, limit: int, width: int) -> Started:
        """`inputs [batch]` int64: classes. No code is given."""
        rows = len(inputs)
        zero = torch.zeros(rows, dtype=torch.int64)
        codes = torch.zeros(rows, limit + width, dtype=torch.int64)
        cache = Memory(codes, zero, inputs)
        return Started(cache, self._raw(cache, codes[:, :1], zero[:, None]), codes[:, :0], zero)

    def verify(self, cache: Memory, draft: Draft) -> Raw:
        assert draft.index.is_chain
        place = cache.length[:, None] + torch.arange(draft.nodes)
        cache.codes.scatter_(1, place, draft.units)
        return self._raw(cache, draft.units, place + 1)

    def commit(self, cache: Memory, path: Tensor, count: Tensor) -> None:
        cache.length = cache.length + count  # a chain's accepted nodes stand where they belong

    def truncate(self, cache: Memory, length: Tensor) -> None:
        cache.length = length

    def _raw(self, cache: Memory, before: Tensor, place: Tensor) -> Raw:
        """Logits of the codes at `place [batch, node]`, `before [batch, node]` being the codes that precede them."""
        assert self.vocab is not None
        left = torch.where(place % self.width == 0, self.vocab, before)
        up = cache.codes.gather(1, (place - self.width).clamp(min=0))
        above = torch.where(place < self.width, self.vocab, up)
        return Raw(logits=self.table[cache.kind[:, None], left, above], null=self.table[-1][left, above])

    def next_logits(self, kind: int, codes: tuple[int, ...], guidance: float) -> Tensor:
        """The law in closed form: guided logits `[vocab]` after `codes`."""
        assert self.vocab is not None
        place = len(codes)
        left = codes[-1] if place % self.width else self.vocab
        above = codes[place - self.width] if place >= self.width else self.vocab
        given, null = self.table[kind, left, above], self.table[-1, left, above]
        return null + guidance * (given - null)
