"""The arithmetic of Gaussian mixtures with diagonal covariances: densities, and samples from given exponentials."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions.distribution import finite_nodes


@dataclass(frozen=True)
class MixtureDensity:
    """A mixture at every node."""

    weights: Tensor  # `[batch, node, component]`, normalised
    means: Tensor  # `[batch, node, component, dim]`
    sigmas: Tensor  # `[batch, node, component]` or `[batch, node, component, dim]`, positive

    @staticmethod
    def single(mean: Tensor, sigma: Tensor) -> "MixtureDensity":
        """One Gaussian at every node, of `mean` and `sigma [batch, node, dim]`."""
        return MixtureDensity(torch.ones_like(mean[..., :1]), mean[:, :, None], sigma[:, :, None])

    def at(self, rows: Tensor, nodes: Tensor) -> "MixtureDensity":
        """The mixtures at the `n` places (`rows [n]`, `nodes [n]`): `[n, 1]`."""
        return MixtureDensity(*(values[rows, nodes][:, None] for values in (self.weights, self.means, self.sigmas)))

    @property
    def scales(self) -> Tensor:
        """Sigmas of all dimensions: `[batch, node, component, dim]`."""
        sigmas = self.sigmas if self.sigmas.dim() == self.means.dim() else self.sigmas[..., None]
        return sigmas.expand_as(self.means)

    @property
    def numbers(self) -> int:
        """Exponentials that one sample takes: one a component, and two a dimension."""
        return self.means.shape[2] + 2 * self.means.shape[3]

    def finite(self) -> Tensor:
        """True if the mixture at each node is a distribution: `[batch, node]` bool."""
        positive = finite_nodes(torch.where(self.sigmas > 0, self.sigmas, torch.nan))
        return finite_nodes(self.weights) & (self.weights.sum(-1) > 0) & finite_nodes(self.means) & positive

    def log_density(self, x: Tensor) -> Tensor:
        """Log density of `x [batch, node, n, dim]`: `[batch, node, n]`."""
        return self.log_parts(x).logsumexp(-1) - x.shape[-1] / 2 * math.log(2 * math.pi)

    def log_parts(self, x: Tensor) -> Tensor:
        """Log of each component's weighted density at `x [batch, node, n, dim]`, up to a constant: `[…, component]`."""
        scales = self.scales[:, :, None]
        z = (x[..., None, :] - self.means[:, :, None]) / scales
        return self.weights[:, :, None].log() - (z * z).sum(-1) / 2 - scales.log().sum(-1)

    def part(self, component: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and sigma of `component [batch, node, n]`: `[batch, node, n, dim]` each."""
        index = component[..., None].expand(*component.shape, self.means.shape[3])
        return self.means.gather(2, index), self.scales.gather(2, index)

    def drawn(self, exponentials: Tensor) -> Tensor:
        """Samples `[batch, node, n, dim]` from exponentials `[batch, node, n, numbers]`."""
        sizes = [self.means.shape[2], self.means.shape[3], self.means.shape[3]]
        race, squared, turn = exponentials.split(sizes, -1)
        mean, sigma = self.part((self.weights[:, :, None] / race).argmax(-1))
        # Box and Muller (1958): half the squared radius is exponential, and the angle is uniform, as exp(-turn) is.
        return mean + sigma * torch.sqrt(2 * squared) * torch.cos(2 * torch.pi * torch.expm1(-turn))
