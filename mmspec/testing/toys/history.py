"""A toy target whose distribution depends on every unit before it and on each unit's position: a stale or shifted cache
shows. Its cache is the sequence itself and can be truncated, so that the target serves as a draft model, too.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.testing.toys.cache import UnitsCache

CONTEXTS = 61
POSITIONS = 256


class HistoryTarget:
    """p(next | all units so far): a table `[61, vocab]` of logits, indexed by a position-weighted sum of the units."""

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
        """A worse model of the same units: logits mixed with those of another table; `mix` 0 is this model."""
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
        """`inputs`: a prompt `[batch, prompt]`, or a tuple of it and its left padding `[batch]`."""
        prompt, pads = inputs if isinstance(inputs, tuple) else (inputs, torch.zeros(len(inputs), dtype=torch.int64))
        length = prompt.shape[1] - pads
        slot = torch.arange(prompt.shape[1])
        packed = prompt.gather(1, (pads[:, None] + slot).clamp(max=prompt.shape[1] - 1))
        units = torch.cat([packed, prompt.new_zeros(len(prompt), limit + width + 1)], 1)
        row = self._sum(units, length) % CONTEXTS
        cache = UnitsCache(units=units, length=length, width=width)
        return Prefill(cache, TargetOutput(logits=self.table[row][:, None]), prompt, pads)

    def verify(self, cache: UnitsCache, draft: Draft, first: int = 0) -> TargetOutput:
        cache.remember(draft)
        return TargetOutput(logits=self.after(cache.units, cache.length, draft)[:, first:])

    def after(self, units: Tensor, length: Tensor, draft: Draft) -> Tensor:
        """Logits `[batch, node, vocab]` after every node of a rooted draft on `length` of `units [batch, …]`."""
        own = (draft.units + 1) * self._weight[self.position(length, draft)]
        path = (draft.index.ancestor * own[:, None]).sum(-1)
        return self.table[(self._sum(units, length)[:, None] + path) % CONTEXTS]

    def position(self, length: Tensor, draft: Draft) -> Tensor:
        """The position of every node: `[batch, node]`."""
        return length[:, None] + draft.index.depth

    def commit(self, cache: UnitsCache, path: Tensor, count: Tensor) -> None:
        cache.commit(path, count)

    def truncate(self, cache: UnitsCache, length: Tensor) -> None:
        assert (length <= cache.length).all(), "cannot keep more than there is"
        cache.length = length

    def _sum(self, units: Tensor, length: Tensor) -> Tensor:
        slot = torch.arange(units.shape[1])
        return torch.where(slot < length[:, None], (units + 1) * self._weight[slot], 0).sum(1)
