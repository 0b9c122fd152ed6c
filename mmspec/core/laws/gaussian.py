"""Gaussian laws of one covariance, coupled by reflection.

Reflection-maximal coupling (Bou-Rabee et al., 2020; De Bortoli et al., arXiv 2501.05370): with e = (x - mean_q) / sigma
and z = (mean_q - mean_p) / sigma, keep x with probability min(1, exp((|e|^2 - |e + z|^2) / 2)); else mirror e in the
hyperplane orthogonal to z. Guarantee: y ~ p exactly; P(y = x) = 1 - TV, optimal, without a residual to sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.laws.law import Law, take_nodes
from mmspec.core.noise import Lane, Noise


@dataclass(frozen=True)
class Gaussian:
    """An isotropic Gaussian at every node.

    Attributes:
        mean: `[batch, node, *unit]` float.
        sigma: Standard deviation, one number for all nodes: the coupling needs one covariance on both sides.
    """

    mean: Tensor
    sigma: float

    def __post_init__(self) -> None:
        if not self.sigma > 0:
            raise ValueError(f"sigma must be positive, got {self.sigma}; a noiseless head has no coupling")

    @staticmethod
    def cat(laws: "Sequence[Gaussian]") -> "Gaussian":
        """Laws of one sigma joined along the nodes."""
        if len({law.sigma for law in laws}) != 1:
            raise ValueError(f"one draft needs one sigma, got {sorted({law.sigma for law in laws})}")
        return Gaussian(torch.cat([law.mean for law in laws], 1), laws[0].sigma)

    def draw(self, noise: Noise) -> Tensor:
        return self.mean + self.sigma * noise.normal(*self.mean.shape[2:])

    def couple(self, draft: Law, x: Tensor, noise: Noise) -> Tensor:
        if not isinstance(draft, Gaussian) or draft.sigma != self.sigma:
            raise TypeError(f"reflection needs a Gaussian draft of sigma {self.sigma}, got {draft!r:.80}")
        e = ((x - draft.mean) / self.sigma).flatten(2)
        z = ((draft.mean - self.mean) / self.sigma).flatten(2)
        squared = (z * z).sum(-1, keepdim=True)
        along = (z * e).sum(-1, keepdim=True)
        keep = torch.log(noise.lane(Lane.COIN).uniform()[..., None]) < -(along + squared / 2)
        mirrored = e - 2 * z * along / squared.clamp(min=torch.finfo(z.dtype).tiny)
        y = self.mean + self.sigma * mirrored.reshape_as(x)
        return torch.where(keep.reshape(*keep.shape[:2], *(1,) * (x.dim() - 2)), x, y)

    def take(self, nodes: Tensor) -> "Gaussian":
        return Gaussian(take_nodes(self.mean, nodes), self.sigma)

    def confidence(self) -> Tensor:
        return torch.zeros(self.mean.shape[:2], device=self.mean.device)

    def finite(self) -> Tensor:
        return self.mean.isfinite().flatten(2).all(-1)
