"""Mixtures of Gaussians (GIVT, arXiv 2312.02116), coupled in one of two ways
(`mmspec.core.distributions.mixture_coupling`).

`common` (default): the component that x came from is coupled with the target's, then x is reflected inside the common
component. `maximal`: by densities. Guarantee of both: y ~ p exactly.
Which is better: `maximal` keeps x as often as any coupling can, 1 - TV(p, q), and `common` at most that often (0 to 18
percent of it less, on toys of 1 to 16 dimensions). But what `maximal` redraws may lie anywhere, where `common` stays
near x; in a Jacobi window the slots to the right then hardly see that anything changed. Units a pass of a toy, window
12, `maximal` against `common`: D = 1: 3.5 and 3.4; D = 4: 2.9 and 3.9; D = 16: 1.7 and 3.3.
Knobs: `coupling`: `common` for windows; `maximal` for drafts that are verified once, or of a model whose components
mean something else. `slack` (larger: fewer tries where p and q are almost equal, and that share less acceptance).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.distribution import Distribution, finite_nodes, take_nodes
from mmspec.core.distributions.mixture_coupling import COUPLINGS
from mmspec.core.noise import Noise


@dataclass(frozen=True)
class GaussianMixture:
    """A mixture of Gaussians with diagonal covariances at every node.

    Attributes:
        weights: `[batch, node, component]`, normalised.
        means: `[batch, node, component, dim]`.
        sigmas: `[batch, node, component]` or `[batch, node, component, dim]`, positive. May differ from the draft's.
        coupling: `common` or `maximal`; see the module.
        slack: In (0, 1); see the module.
    """

    weights: Tensor
    means: Tensor
    sigmas: Tensor
    coupling: str = "common"
    slack: float = 1e-3

    def __post_init__(self) -> None:
        if not 0 < self.slack < 1:
            raise ValueError(f"slack must be inside (0, 1), got {self.slack}; it is the share of acceptance given up")
        if self.coupling not in COUPLINGS:
            raise ValueError(f"coupling must be one of {', '.join(COUPLINGS)}, got {self.coupling!r}")

    @staticmethod
    def cat(distributions: "Sequence[GaussianMixture]") -> "GaussianMixture":
        """Mixtures of equally many components joined along the nodes."""
        parts = zip(
            *((distribution.weights, distribution.means, distribution.sigmas) for distribution in distributions),
            strict=True,
        )
        return distributions[0]._of(*(torch.cat(part, 1) for part in parts))

    def draw(self, noise: Noise) -> Tensor:
        return self.drawn(noise.exponential(self.numbers)[:, :, None])[:, :, 0]

    def couple(self, draft: Distribution, x: Tensor, noise: Noise) -> Tensor:
        if not isinstance(draft, GaussianMixture):
            raise TypeError(f"a mixture of Gaussians cannot be coupled with a {type(draft).__name__} draft")
        alike = self.weights.shape[-1] == draft.weights.shape[-1]
        return COUPLINGS[self.coupling if alike else "maximal"](self, draft, x, noise)

    def log_density(self, x: Tensor) -> Tensor:
        """Log density of `x [batch, node, n, dim]`: `[batch, node, n]`."""
        return self.log_parts(x).logsumexp(-1) - x.shape[-1] / 2 * math.log(2 * math.pi)

    def log_parts(self, x: Tensor) -> Tensor:
        """Each component's part of the density of `x [batch, node, n, dim]`, up to a constant: `[…, n, component]`."""
        scales = self.scales[:, :, None]
        z = (x[..., None, :] - self.means[:, :, None]) / scales
        return self.weights[:, :, None].log() - (z * z).sum(-1) / 2 - scales.log().sum(-1)

    def part(self, component: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and sigma of `component [batch, node, n]`: `[batch, node, n, dim]` each."""
        at = component[..., None].expand(*component.shape, self.means.shape[3])
        return self.means.gather(2, at), self.scales.gather(2, at)

    @property
    def scales(self) -> Tensor:
        """Sigmas of all dimensions: `[batch, node, component, dim]`."""
        sigmas = self.sigmas if self.sigmas.dim() == self.means.dim() else self.sigmas[..., None]
        return sigmas.expand_as(self.means)

    @property
    def numbers(self) -> int:
        """Exponentials that a draw takes: a race of the components, and two for each normal."""
        return self.means.shape[2] + 2 * self.means.shape[3]

    def drawn(self, e: Tensor) -> Tensor:
        """Draws `[batch, node, n, dim]` of exponentials `[batch, node, n, numbers]`."""
        race, squared, turn = e.split([self.means.shape[2], *(self.means.shape[3],) * 2], -1)
        mean, sigma = self.part((self.weights[:, :, None] / race).argmax(-1))
        # Box and Muller: half a squared radius is exponential, and what is left of 1 after a turn is uniform.
        return mean + sigma * torch.sqrt(2 * squared) * torch.cos(2 * torch.pi * torch.expm1(-turn))

    def at(self, rows: Tensor, nodes: Tensor) -> "GaussianMixture":
        """Some of the nodes, one a row: `[n, 1]`."""
        return self._of(*(values[rows, nodes][:, None] for values in (self.weights, self.means, self.sigmas)))

    def units(self, draws: Tensor) -> Tensor:
        return draws

    def with_draws(self, draws: Tensor) -> "GaussianMixture":
        return self

    def take(self, nodes: Tensor) -> "GaussianMixture":
        return self._of(*(take_nodes(values, nodes) for values in (self.weights, self.means, self.sigmas)))

    def confidence(self) -> Tensor:
        return torch.zeros(self.means.shape[:2], dtype=torch.float32, device=self.means.device)

    def finite(self) -> Tensor:
        positive = finite_nodes(torch.where(self.sigmas > 0, self.sigmas, torch.nan))
        return finite_nodes(self.weights) & (self.weights.sum(-1) > 0) & finite_nodes(self.means) & positive

    def fault(self, draws: Tensor, row: int, node: int) -> str:
        """What is wrong with the distribution of a node."""
        sigmas = self.sigmas[row, node]
        wrong = sigmas[~((sigmas > 0) & sigmas.isfinite())].flatten()
        if len(wrong):
            return f"a component's sigma is {float(wrong[0]):g}, which must be positive"
        return "" if bool(self.finite()[row, node]) else "weights or means are not finite, or all weights are 0"

    def _of(self, *parts: Any) -> "GaussianMixture":
        return replace(self, **dict(zip(("weights", "means", "sigmas"), parts, strict=True)))
