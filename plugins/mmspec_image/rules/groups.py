"""Units that stand for one another, as the relaxed rules see them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Group:
    """What stands for a unit.

    Attributes:
        ids: `[batch, node, unit, size]`, no unit twice; the unit itself comes first.
        inside: The same shape, bool: those that really belong to it.
    """

    ids: Tensor
    inside: Tensor

    def mass(self, probs: Tensor) -> Tensor:
        """Probability of each group under `probs [batch, node, vocab]`: `[batch, node, unit]`."""
        return (probs.gather(-1, self.ids.flatten(2)).reshape(self.ids.shape) * self.inside).sum(-1)

    def members(self, vocab: int) -> Tensor:
        """Over the vocabulary, where every node has the group of one unit: `[batch, node, vocab]` bool."""
        ids, inside = self.ids[:, :, 0], self.inside[:, :, 0]
        count = torch.zeros(*ids.shape[:2], vocab, dtype=torch.uint8, device=ids.device)
        return count.scatter_add(-1, ids, inside.to(torch.uint8)) > 0


Groups = Callable[[Tensor], Group]
"""Of the units `[batch, node, unit]` of a round; the target's distribution is closed over."""


def apart(codebook: Tensor) -> tuple[Tensor, ...]:
    """Distances of all codes of `codebook [vocab, width]`, a thousand codes at a time: `[≤ 1024, vocab]` each."""
    codes = codebook.float()
    return tuple(torch.cdist(some, codes) for some in codes.split(1024))
