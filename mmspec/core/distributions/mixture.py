"""Mixtures of Gaussians (GIVT, arXiv 2312.02116), coupled in one of two ways
(`mmspec.core.distributions.mixture_coupling` has the equations).

`common` (default): the component that x came from is coupled with the target's, then x is reflected inside the common
component. `maximal`: x is kept or redrawn by the ratio of the densities.
Guarantee of both: y ~ p exactly.
Which is better: `maximal` keeps x as often as any coupling can, 1 - TV(p, q); `common` keeps it up to 18 percent less
often (toys of 1 to 16 dimensions). But a unit that `maximal` redraws may lie anywhere, while that of `common` stays
near x, so that in a Jacobi window the slots behind it hardly change. Units per pass of a toy at window 12, `maximal`
against `common`: 3.5 and 3.4 at D = 1; 2.9 and 3.9 at D = 4; 1.7 and 3.3 at D = 16.
Knobs: `coupling`: `common` for windows; `maximal` for drafts that are verified once, or of a model whose components
do not correspond to the target's. `slack` (larger: fewer proposals where p and q are almost equal, and that share less
acceptance).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmspec.core.distributions.distribution import Distribution, DrawsUnits, take_nodes
from mmspec.core.distributions.mixture_coupling import COUPLINGS
from mmspec.core.distributions.mixture_density import MixtureDensity
from mmspec.core.noise import Noise


@dataclass(frozen=True)
class GaussianMixture(DrawsUnits):
    """A mixture of Gaussians with diagonal covariances at every node."""

    weights: Tensor  # `[batch, node, component]`, normalised
    means: Tensor  # `[batch, node, component, dim]`
    sigmas: Tensor  # `[batch, node, component]` or `[batch, node, component, dim]`, positive. The draft's may differ.
    coupling: str = "common"  # `common` or `maximal`; see the module
    slack: float = 1e-3  # in (0, 1); see the module

    def __post_init__(self) -> None:
        if not 0 < self.slack < 1:
            raise ValueError(f"slack must be inside (0, 1), got {self.slack}; it is the share of acceptance given up")
        if self.coupling not in COUPLINGS:
            raise ValueError(f"coupling must be one of {', '.join(COUPLINGS)}, got {self.coupling!r}")

    @staticmethod
    def cat(distributions: "Sequence[GaussianMixture]") -> "GaussianMixture":
        """Mixtures of equally many components joined along the nodes."""
        return replace(
            distributions[0],
            weights=torch.cat([d.weights for d in distributions], 1),
            means=torch.cat([d.means for d in distributions], 1),
            sigmas=torch.cat([d.sigmas for d in distributions], 1),
        )

    @property
    def density(self) -> MixtureDensity:
        """The mixture's density and samples."""
        return MixtureDensity(self.weights, self.means, self.sigmas)

    @property
    def scales(self) -> Tensor:
        """Sigmas of all dimensions: `[batch, node, component, dim]`."""
        return self.density.scales

    def draw(self, noise: Noise) -> Tensor:
        density = self.density
        return density.drawn(noise.exponential(density.numbers)[:, :, None])[:, :, 0]

    def couple(self, draft: Distribution, x: Tensor, noise: Noise) -> Tensor:
        if not isinstance(draft, GaussianMixture):
            raise TypeError(f"a mixture of Gaussians cannot be coupled with a {type(draft).__name__} draft")
        same_size = self.weights.shape[-1] == draft.weights.shape[-1]
        return COUPLINGS[self.coupling if same_size else "maximal"](self.density, draft.density, x, noise, self.slack)

    def take(self, nodes: Tensor) -> "GaussianMixture":
        weights, means, sigmas = (take_nodes(values, nodes) for values in (self.weights, self.means, self.sigmas))
        return replace(self, weights=weights, means=means, sigmas=sigmas)

    def confidence(self) -> Tensor:
        return torch.zeros(self.means.shape[:2], dtype=torch.float32, device=self.means.device)

    def finite(self) -> Tensor:
        return self.density.finite()

    def fault(self, draws: Tensor, row: int, node: int) -> str:
        """The fault of the distribution of a node."""
        sigmas = self.sigmas[row, node]
        wrong = sigmas[~((sigmas > 0) & sigmas.isfinite())].flatten()
        if len(wrong):
            return f"a component's sigma is {float(wrong[0]):g}, which must be positive"
        return "" if bool(self.finite()[row, node]) else "weights or means are not finite, or all weights are 0"
