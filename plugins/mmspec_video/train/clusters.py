"""Codes that a transformer finds easy: clusters of what is coarse in a patch.

A VQ that learns codes and pictures at once spends its codes on texture, which no view shows twice in the same place:
which of them comes next is chance, whatever the player does.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

SIDE = 8
"""Pixels of a patch, along a side."""
COARSE = 12
"""Directions in which patches differ most; what is left of them is texture."""
SEEN, ROUNDS = 60_000, 25
"""Patches that the clusters are found with, and rounds of k-means."""


@dataclass(frozen=True)
class Clusters:
    """Centres of patches.

    Attributes:
        mean: Patch: `[channel · pixel]`.
        axes: Principal directions: `[channel · pixel, COARSE]`.
        centres: `[cluster, COARSE]`.
    """

    mean: Tensor
    axes: Tensor
    centres: Tensor

    @classmethod
    def of(cls, pictures: Tensor, clusters: int, seed: int) -> "Clusters":
        """K-means of the patches of pictures `[picture, 3, height, width]`."""
        g = torch.Generator().manual_seed(seed)
        patches = _patches(pictures).flatten(0, 2).float()
        patches = patches[torch.randint(len(patches), (SEEN,), generator=g)]
        mean = patches.mean(0)
        axes = torch.linalg.svd(patches - mean, full_matrices=False).Vh[:COARSE].T
        coarse = (patches - mean) @ axes
        centres = coarse[torch.randperm(SEEN, generator=g)[:clusters]]
        for _ in range(ROUNDS):
            member = F.one_hot(torch.cdist(coarse, centres).argmin(1), clusters).float()
            size = member.sum(0)[:, None]
            centres = torch.where(size > 0, member.T @ coarse / size.clamp(min=1), centres)
        return cls(mean, axes, centres)

    def codes(self, pictures: Tensor) -> Tensor:
        """The nearest of each patch: `[picture, row, column]` int64."""
        coarse = (_patches(pictures).float() - self.mean) @ self.axes
        return torch.cdist(coarse, self.centres).argmin(-1)


def _patches(pictures: Tensor) -> Tensor:
    return rearrange(pictures, "picture c (row y) (column x) -> picture row column (c y x)", y=SIDE, x=SIDE)
