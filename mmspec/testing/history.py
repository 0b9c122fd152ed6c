"""A toy target whose distribution depends on every unit before it and on where each stands: a stale or shifted cache
shows.

Its cache is the sequence itself, so that it can be truncated: it serves as a draft model, too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.types import Draft, Prefill, TargetOutput

CONTEXTS = 61
POSITIONS = 256


@dataclass
class Memory:
    """`units [batch, capacity + 1]` (the last column is scratch), `length [batch]`, widest draft, last draft."""

    units: Tensor
    length: Tensor
    width: int
    draft: Draft | None = None


class HistoryTarget:
    """p(next | all units so far): a table over a position-weighted sum of them.

    Args:
        table: `[61, vocab]` logits.
    """

    offers = frozenset({"discrete", "tree", "grow", "truncate"})

    def __init__(self, table: Tensor) -> None:
        self.table = table
        self.vocab: int | None = table.shape[1]
        self._weight = torch.tensor([pow(7, i, CONTEXTS) for i in range(POSITIONS)])

    @classmethod
    def random(cls, vocab: int, seed: int, sharpness: float = 1.5) -> "HistoryTarget":
        """Gaussian logits."""
        return cls(torch.randn(CONTEXTS, vocab, generator=torch.Generator().manual_seed(seed)) * sharpness)

    def near(self, seed: int, mix: float = 0.5) -> "HistoryTarget":
        """A worse model of the same units: logits mixed with another table's; `mix` 0 is this model."""
        other = HistoryTarget.random(self.table.shape[1], seed)
        return HistoryTarget((1 - mix) * self.table + mix * other.table)

    def next_distribution(
        self, prompt: list[int], warp: Callable[[Tensor], Tensor] = lambda x: x
    ) -> Callable[..., Tensor]:
        """The distribution `[vocab]` after `prompt` and the units emitted since, for the exact oracles."""

        def distribution(emitted: tuple[int, ...]) -> Tensor:
            units = torch.tensor([*prompt, *emitted])
            row = ((units + 1) * self._weight[: len(units)]).sum() % CONTEXTS
            return torch.softmax(warp(self.table[row]), -1)

        return distribution

    def start(self, inputs: Any, limit: int, width: int) -> Prefill:
        """`inputs`: a prompt `[batch, prompt]`, or that and its left padding `[batch]`."""
        prompt, pads = inputs if isinstance(inputs, tuple) else (inputs, torch.zeros(len(inputs), dtype=torch.int64))
        length = prompt.shape[1] - pads
        slot = torch.arange(prompt.shape[1])
        packed = prompt.gather(1, (pads[:, None] + slot).clamp(max=prompt.shape[1] - 1))
        units = torch.cat([packed, prompt.new_zeros(len(prompt), limit + width + 1)], 1)
        row = self._sum(units, length) % CONTEXTS
        return Prefill(Memory(units, length, width), TargetOutput(logits=self.table[row][:, None]), prompt, pads)

    def verify(self, cache: Memory, draft: Draft, first: int = 0) -> TargetOutput:
        assert draft.nodes <= cache.width, f"{draft.nodes} nodes in a cache that was made for {cache.width}"
        cache.draft = draft
        return TargetOutput(logits=self.after(cache.units, cache.length, draft)[:, first:])

    def after(self, units: Tensor, length: Tensor, draft: Draft) -> Tensor:
        """Logits `[batch, node, vocab]` after every node of a rooted draft on `length` of `units [batch, …]`."""
        own = (draft.units + 1) * self._weight[self.position(length, draft)]
        path = (draft.index.ancestor * own[:, None]).sum(-1)
        return self.table[(self._sum(units, length)[:, None] + path) % CONTEXTS]

    def position(self, length: Tensor, draft: Draft) -> Tensor:
        """Where every node stands: `[batch, node]`."""
        return length[:, None] + draft.index.depth

    def commit(self, cache: Memory, path: Tensor, count: Tensor) -> None:
        assert cache.draft is not None
        nodes = torch.cat([torch.zeros_like(count)[:, None], path.clamp(min=0)], 1)
        slot = torch.arange(nodes.shape[1])
        where = torch.where(slot < count[:, None], cache.length[:, None] + slot, cache.units.shape[1] - 1)
        cache.units.scatter_(1, where, cache.draft.units.gather(1, nodes))
        cache.length = cache.length + count

    def truncate(self, cache: Memory, length: Tensor) -> None:
        assert (length <= cache.length).all(), "cannot keep more than there is"
        cache.length = length

    def _sum(self, units: Tensor, length: Tensor) -> Tensor:
        slot = torch.arange(units.shape[1])
        return torch.where(slot < length[:, None], (units + 1) * self._weight[slot], 0).sum(1)
