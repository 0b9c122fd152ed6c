"""Isotropic Gaussians, coupled by reflection (`mmspec.core.distributions.reflection` has papers and equation).

Guarantee: y ~ p exactly; P(y = x) = 1 - TV, the maximum, without a residual to sample. At each node target and draft
must have the same sigma: variances that depend on the context (learned ones) are refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions.distribution import Distribution, DrawsUnits, finite_nodes, take_nodes
from mmspec.core.distributions.reflection import reflect
from mmspec.core.noise import ContinuousNoise, Substream


@dataclass(frozen=True)
class Gaussian(DrawsUnits):
    """An isotropic Gaussian at every node."""

    mean: Tensor  # `[batch, node, *unit]` float
    # Standard deviation: one number, or a tensor that broadcasts to `[batch, node, 1…]`. Comparing two tensors is a
    # host sync; comparing numbers is not.
    sigma: float | Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.sigma, Tensor) and not self.sigma > 0:
            raise ValueError(f"sigma must be positive, got {self.sigma}; a noiseless head has no coupling")

    @staticmethod
    def cat(distributions: "Sequence[Gaussian]") -> "Gaussian":
        """Distributions joined along the nodes."""
        mean = torch.cat([distribution.mean for distribution in distributions], 1)
        numbers = {distribution.sigma for distribution in distributions if not isinstance(distribution.sigma, Tensor)}
        if len(numbers) > 1:
            raise ValueError(f"one draft needs one sigma, got {sorted(numbers)}; give a tensor where nodes differ")
        if not any(isinstance(distribution.sigma, Tensor) for distribution in distributions):
            return Gaussian(mean, distributions[0].sigma)
        return Gaussian(mean, torch.cat([distribution._spread() for distribution in distributions], 1))

    def draw(self, noise: ContinuousNoise) -> Tensor:
        return self.mean + self.sigma * noise.normal(*self.mean.shape[2:])

    def couple(self, draft: Distribution, x: Tensor, noise: ContinuousNoise) -> Tensor:
        if not isinstance(draft, Gaussian):
            raise TypeError(f"reflection needs a Gaussian draft, got a {type(draft).__name__}")
        self._refuse_another_sigma(draft)
        coin = torch.log(noise.substream(Substream.COIN).uniform())
        return reflect(x, draft.mean, self.mean, self.sigma, coin)

    def take(self, nodes: Tensor) -> "Gaussian":
        sigma = take_nodes(self._spread(), nodes) if isinstance(self.sigma, Tensor) else self.sigma
        return Gaussian(take_nodes(self.mean, nodes), sigma)

    def confidence(self) -> Tensor:
        return torch.zeros(self.mean.shape[:2], dtype=torch.float32, device=self.mean.device)

    def finite(self) -> Tensor:
        finite = finite_nodes(self.mean)
        if isinstance(self.sigma, Tensor):
            sigma = self._spread()
            finite = finite & finite_nodes(torch.where(sigma > 0, sigma, torch.nan))
        return finite

    def fault(self, draws: Tensor, row: int, node: int) -> str:
        """The fault of the distribution of a node."""
        sigma = float(self._spread()[row, node].flatten()[0])
        if not 0 < sigma < torch.inf:
            return f"sigma is {sigma:g}, which must be positive: a noiseless token has no coupling"
        return "" if self.mean[row, node].isfinite().all() else "the mean is not finite"

    def _spread(self) -> Tensor:
        """Sigma at every node: `[batch, node, 1…]`."""
        ones = (1,) * (self.mean.dim() - 2)
        sigma = torch.as_tensor(self.sigma, dtype=self.mean.dtype, device=self.mean.device)
        return sigma.expand(*self.mean.shape[:2], *ones)

    def _refuse_another_sigma(self, draft: "Gaussian") -> None:
        if self.sigma is draft.sigma:
            return
        if not isinstance(self.sigma, Tensor) and not isinstance(draft.sigma, Tensor) and self.sigma == draft.sigma:
            return
        p, q = self._spread().flatten(1), draft._spread().flatten(1)
        apart = (p != q).nonzero().tolist()
        if apart:
            row, token = apart[0]
            raise ValueError(
                f"reflection needs one sigma on both sides: at row {row}, drafted token {token}, the draft's is "
                f"{float(q[row, token]):g} and the target's sigma {float(p[row, token]):g}; learned variances depend "
                "on the context and must be fixed"
            )
