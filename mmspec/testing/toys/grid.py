"""Toy picture: a grid of codes in raster order; each depends on the codes to its left and above, and on a class."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.testing.toys.cache import UnitsCache


@dataclass(kw_only=True)
class GridCache(UnitsCache):
    kind: Tensor  # `[batch]`: the class of each row


class GridTarget:
    """p(code | left, above, class) from a table. The id `vocab` stands for a neighbour outside of the grid.

    The table is `[class, vocab + 1, vocab + 1, vocab]` logits by left and above; the last class is the unconditional
    one. `forced [codes]` int64 are codes that are known in advance, -1 where they are free.
    """

    offers = frozenset({"discrete", "tree", "grow", "truncate"})

    def __init__(self, width: int, table: Tensor, forced: Tensor | None = None) -> None:
        self.width = self.grid = width
        self.table = table
        self.forced = forced
        self.vocab: int | None = table.shape[-1]

    @classmethod
    def random(cls, width: int, vocab: int, seed: int, classes: int = 2, sharpness: float = 1.5) -> "GridTarget":
        """Gaussian logits."""
        generator = torch.Generator().manual_seed(seed)
        table = torch.randn(classes + 1, vocab + 1, vocab + 1, vocab, generator=generator)
        return cls(width, table * sharpness)

    def start(self, inputs: Tensor, limit: int, width: int) -> Prefill:
        """`inputs [batch]` int64: classes. The prompt has no codes."""
        rows = len(inputs)
        zero = torch.zeros(rows, dtype=torch.int64)
        codes = torch.zeros(rows, limit + 1, dtype=torch.int64)
        cache = GridCache(units=codes, length=zero, width=width, kind=inputs)
        return Prefill(cache, self._output(cache, codes[:, :1], codes[:, :1], zero[:, None]), codes[:, :0], zero)

    def verify(self, cache: GridCache, draft: Draft, first: int = 0) -> TargetOutput:
        cache.remember(draft)
        place = cache.length[:, None] + draft.index.depth + 1  # of the code that follows each node
        above = place - self.width  # committed, or `above - length` levels down the node's own path
        known = cache.units.gather(1, above.clamp(min=0, max=cache.units.shape[1] - 1))
        level = (above - cache.length[:, None])[..., None]
        on_path = draft.index.ancestor & (draft.index.depth[:, None] == level)  # [batch, node, ancestor]
        drafted = draft.units.gather(1, on_path.int().argmax(-1))
        above = torch.where(level[..., 0] < 0, known, drafted)
        return self._output(cache, draft.units[:, first:], above[:, first:], place[:, first:])

    def commit(self, cache: GridCache, path: Tensor, count: Tensor) -> None:
        cache.commit(path, count)

    def truncate(self, cache: GridCache, length: Tensor) -> None:
        cache.length = length

    def _output(self, cache: GridCache, before: Tensor, up: Tensor, place: Tensor) -> TargetOutput:
        """Logits of the codes at `place`, which follow `before` and stand below `up`: `[batch, node]` each."""
        assert self.vocab is not None
        left = torch.where(place % self.width == 0, self.vocab, before)
        above = torch.where(place < self.width, self.vocab, up)
        return TargetOutput(logits=self.table[cache.kind[:, None], left, above], null=self.table[-1][left, above])

    def next_logits(self, kind: int, codes: tuple[int, ...], guidance: float) -> Tensor:
        """Guided logits `[vocab]` after `codes`, in closed form."""
        assert self.vocab is not None
        place = len(codes)
        left = codes[-1] if place % self.width else self.vocab
        above = codes[place - self.width] if place >= self.width else self.vocab
        conditional, null = self.table[kind, left, above], self.table[-1, left, above]
        return null + guidance * (conditional - null)
