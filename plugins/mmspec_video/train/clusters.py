"""Codes that a transformer predicts easily: clusters of the low-frequency content of patches.

A VQ that learns codes and pictures together spends its codes on texture, which no two views show in the same place, so
that the next code is random whatever the player does.
"""

import warnings
from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor

SIDE = 8
"""Side of a patch, in pixels."""
COARSE = 12
"""Principal components of a patch that are kept; the others are texture."""
SAMPLE, ROUNDS = 60_000, 25
"""Patches that the clusters are fitted to, and rounds of k-means."""


@dataclass(frozen=True)
class Clusters:
    """Clusters of patches.

    Attributes:
        mean: Mean patch: `[channel · pixel]`.
        axes: Principal components: `[channel · pixel, COARSE]`.
        centres: Centres of the clusters: `[cluster, COARSE]`.
    """

    mean: Tensor
    axes: Tensor
    centres: Tensor

    @classmethod
    def of(cls, pictures: Tensor, clusters: int, seed: int) -> "Clusters":
        """K-means of the patches of pictures `[picture, 3, height, width]`."""
        from scipy.cluster.vq import kmeans2  # of the extra `train`

        g = torch.Generator().manual_seed(seed)
        patches = _patches(pictures).flatten(0, 2).float()
        patches = patches[torch.randint(len(patches), (SAMPLE,), generator=g)]
        mean = patches.mean(0)
        axes = torch.linalg.svd(patches - mean, full_matrices=False).Vh[:COARSE].T
        coarse = (patches - mean) @ axes
        first = coarse[torch.randperm(SAMPLE, generator=g)[:clusters]]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*clusters is empty")  # an empty cluster keeps its centre
            centres, _ = kmeans2(coarse.numpy(), first.numpy(), iter=ROUNDS, minit="matrix")
        return cls(mean, axes, torch.from_numpy(centres).float())

    def codes(self, pictures: Tensor) -> Tensor:
        """The nearest cluster of every patch: `[picture, row, column]` int64."""
        coarse = (_patches(pictures).float() - self.mean) @ self.axes
        return torch.cdist(coarse, self.centres).argmin(-1)


def _patches(pictures: Tensor) -> Tensor:
    return rearrange(pictures, "picture c (row y) (column x) -> picture row column (c y x)", y=SIDE, x=SIDE)
