"""Toy text: an order-2 Markov chain over a handful of tokens."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions import take_nodes
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.testing.toys.cache import rooted_path


@dataclass
class MarkovCache:
    """`before [batch]`: the unit before the root; `draft`: the draft that the last pass scored."""

    before: Tensor
    draft: Draft | None = None


class MarkovTarget:
    """p(next | previous, current) from a table `[vocab, vocab, vocab]` of logits.

    A node's context is its own unit and its parent's.
    """

    offers = frozenset({"discrete", "tree", "grow"})

    def __init__(self, table: Tensor) -> None:
        self.table = table
        self.vocab: int | None = len(table)

    @classmethod
    def random(cls, vocab: int, seed: int, sharpness: float = 1.5) -> "MarkovTarget":
        """Gaussian logits."""
        return cls(torch.randn(vocab, vocab, vocab, generator=torch.Generator().manual_seed(seed)) * sharpness)

    def start(self, inputs: Any, limit: int, width: int) -> Prefill:
        """`inputs [batch, prompt]` int64, at least two units."""
        output = TargetOutput(logits=self.table[inputs[:, -2], inputs[:, -1]][:, None])
        return Prefill(MarkovCache(inputs[:, -1]), output, inputs, torch.zeros(len(inputs), dtype=torch.int64))

    def verify(self, cache: MarkovCache, draft: Draft, first: int = 0) -> TargetOutput:
        cache.draft = draft
        parent = torch.cat([cache.before[:, None], take_nodes(draft.units, draft.index.parent[:, 1:])], 1)
        return TargetOutput(logits=self.table[parent, draft.units][:, first:])

    def commit(self, cache: MarkovCache, path: Tensor, count: Tensor) -> None:
        assert cache.draft is not None
        last = rooted_path(path).gather(1, (count - 1).clamp(min=0)[:, None])
        kept = cache.draft.units.gather(1, last)[:, 0]
        cache.before = torch.where(count > 0, kept, cache.before)

    def truncate(self, cache: MarkovCache, length: Tensor) -> None:
        raise NotImplementedError("a Markov chain keeps one unit only")
