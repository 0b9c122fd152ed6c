"""Groups of interchangeable units, for the relaxed rules."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Group:
    """The groups of some units."""

    ids: Tensor  # `[batch, node, unit, size]`, no unit twice; the unit itself comes first
    inside: Tensor  # bool of the same shape: which of `ids` belong to the group

    def mass(self, probs: Tensor) -> Tensor:
        """Probability of each group under `probs [batch, node, vocab]`: `[batch, node, unit]`."""
        return (probs.gather(-1, self.ids.flatten(2)).reshape(self.ids.shape) * self.inside).sum(-1)

    def members(self, vocab: int) -> Tensor:
        """Membership over the vocabulary, `[batch, node, vocab]` bool, where every node has the group of one unit."""
        ids, inside = self.ids[:, :, 0], self.inside[:, :, 0]
        count = torch.zeros(*ids.shape[:2], vocab, dtype=torch.uint8, device=ids.device)
        return count.scatter_add(-1, ids, inside.to(torch.uint8)) > 0


Groups = Callable[[Tensor], Group]
"""From units `[batch, node, unit]` of a round to their groups under the target's distribution."""


def apart(codebook: Tensor) -> tuple[Tensor, ...]:
    """Distances of all codes of `codebook [vocab, width]`, a thousand codes at a time: `[≤ 1024, vocab]` each."""
    codes = codebook.float()
    return tuple(torch.cdist(some, codes) for some in codes.split(1024))
