"""The last step of two denoising chains that share their noise: what the published rule tests, and its bias.

Given that noise, the last step is a Gaussian in both chains: N(mean, sigma_0²) in the target's and N(draft, sigma_0²)
in the drafter's. Along the line through the two means, in units of sigma_0 and measured from the target's mean, these
are N(0, 1) and N(d, 1); orthogonal to it they are equal. So residuals and total variations are one-dimensional.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions import DenoisingChain, Distribution, Gaussian
from mmspec.core.distributions.trajectory import Trajectory
from mmspec.core.noise import Noise, Substream
from mmspec.core.transfer import widest

REACH = 8.0
"""Integrals are cut off at this many standard deviations."""
POINTS = 192
"""Points of an integral on each side of the middle between the two means."""

Finish = Callable[[Tensor], Tensor]
"""From last states `[batch, node, dim]` to draws of the target's distribution `[batch, node, *draw]`."""


@dataclass(frozen=True)
class LastStep:
    """The last step at every drafted node."""

    mean: Tensor  # mean of the target's last step, `[batch, node, dim]`
    draft: Tensor  # mean of the drafter's last step, `[batch, node, dim]`
    sigma: float  # standard deviation of both
    log_factor: float = 0.0  # log of the factor by which the paper multiplies the ratio of the densities

    def log_ratio(self, x: Tensor, tau: float) -> Tensor:
        """Log of factor · (p(x) / q(x))^(1 / tau), for `x [batch, node, dim]`: `[batch, node]`."""
        p, q = ((x - mean) / self.sigma for mean in (self.mean, self.draft))
        return ((q * q).sum(-1) - (p * p).sum(-1)) / (2 * tau) + self.log_factor

    def residual(self, noise: Noise, tries: int) -> Tensor:
        """Draws from the normalised (factor · p - q)+, `[batch, node, dim]`.

        A proposal y ~ p is taken with probability (1 - q(y) / (factor · p(y)))+; after `tries` refused proposals, one
        more draw from p is taken as it is.
        """
        line, distance = self._line()
        half_square, angle, coin = noise.substream(Substream.RESIDUAL).exponential(3 * (tries + 1)).chunk(3, -1)
        # Box-Muller: half of the squared radius is exponential, and 1 - exp(-angle) is uniform.
        along = torch.sqrt(2 * half_square) * torch.cos(2 * torch.pi * torch.expm1(-angle))
        taken = -coin > distance * along - distance * distance / 2 - self.log_factor
        taken[..., -1] = True
        along = along.gather(-1, taken.int().argmax(-1, keepdim=True))
        across = noise.normal(line.shape[-1])  # the normals of a free draw, which a node with a draft does not use
        across = across - line * (across * line).sum(-1, keepdim=True)
        return self.mean + self.sigma * (across + along * line)

    def bias(self, tau: float, tries: int) -> tuple[Tensor, Tensor]:
        """The distance of the rule's draw at each node from the target's, given the shared noise.

        Returns:
            Total variation between the rule's and the target's last step, and the rule's probability of accepting the
            draft less an exact rule's: `[batch, node]` each.
        """
        distance = self._line()[1]
        distance = distance.to(widest(distance.device))
        middle = distance / 2
        at, weights = zip(
            _midpoints(torch.full_like(distance, -REACH), middle.clamp(max=REACH)),
            _midpoints(torch.maximum(middle, distance - REACH), distance + REACH),
            strict=True,
        )
        u, weight = torch.cat(at, -1), torch.cat(weights, -1)
        p, q = _normal(u), _normal(u - distance)
        log_ratio = distance * distance / 2 - u * distance
        accepted = q * (log_ratio / tau + self.log_factor).clamp(max=0).exp()
        residual = p * (-torch.expm1(-log_ratio - self.log_factor)).clamp(min=0)
        acceptance, hit = ((values * weight).sum(-1, keepdim=True) for values in (accepted, residual))
        missed = (1 - hit.clamp(0, 1)) ** tries
        redrawn = (1 - missed) * residual / hit.clamp(min=torch.finfo(hit.dtype).tiny) + missed * p
        density = accepted + (1 - acceptance).clamp(min=0) * redrawn
        tv = ((density - p).abs() * weight).sum(-1) / 2
        return tv, acceptance[..., 0] - (torch.minimum(p, q) * weight).sum(-1)

    def _line(self) -> tuple[Tensor, Tensor]:
        """Direction from the target's mean to the draft's, `[batch, node, dim]`, and their distance `[…, 1]`."""
        between = (self.draft - self.mean) / self.sigma
        distance = between.norm(dim=-1, keepdim=True)
        return between / distance.clamp(min=torch.finfo(distance.dtype).tiny), distance


def up_to_last_step(
    distribution: Distribution, draft: Distribution, follows: Tensor, noise: Noise, factor: int
) -> tuple[LastStep, Tensor, Finish]:
    """Run the target's chain with the draft's noise, up to the last step.

    Args:
        distribution: The target's distribution `[batch, node]`: denoising chains, or Gaussians, which are chains of one
            step.
        draft: What the drafted nodes were drawn from, `[batch, node - 1]`.
        follows: `[batch, node - 1]` bool: nodes whose drafted child was drawn; the others, and the last node, draw
            freely.
        noise: Noise of the free draws.
        factor: Power of the paper's factor: 1, 0 for no factor, -1 for its inverse.

    Returns:
        The last step; the last states `[batch, node, dim]` of free draws; and how last states become draws.

    Raises:
        ValueError: The target's distribution has no last step, or the draft's has another sigma.
    """
    if isinstance(distribution, Gaussian) and isinstance(draft, Gaussian):
        return (
            LastStep(distribution.mean[:, :-1], draft.mean, float(distribution.sigma)),
            distribution.draw(noise),
            lambda last: last,
        )
    if not isinstance(distribution, DenoisingChain):
        raise ValueError(
            f"only the last step of a denoising chain can be tested, and a {type(distribution).__name__} has none"
        )
    path = distribution.along(draft, follows, noise)  # raises where the draft is no trajectory
    assert isinstance(draft, Trajectory)
    sigmas, drafted, steps = distribution.schedule.sigmas, draft.schedule.sigmas, distribution.schedule.steps
    if drafted[-1] != sigmas[-1]:
        raise ValueError(
            f"all tokens, denoising step {steps - 1} of {steps} (the last one): the draft's sigma is "
            f"{drafted[-1]:g}, the target's {sigmas[-1]:g}; here they have to be one"
        )
    ratios = sum(math.log(q / p) for q, p in zip(drafted[:-1], sigmas[:-1], strict=True))
    log_factor = factor * distribution.head.dim * ratios
    means = distribution.with_draws(path).means
    step = LastStep(means[:, :-1, -1], draft.means[:, :, -1], sigmas[-1], log_factor)

    def finish(last: Tensor) -> Tensor:
        return torch.cat([path[:, :, :steps], last[:, :, None], path[:, :, steps + 1 :]], 2)

    return step, distribution.units(path), finish


def _midpoints(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Midpoint rule from `low` to `high [batch, node, 1]`: points and their weights, `[batch, node, POINTS]` each."""
    share = (torch.arange(POINTS, dtype=low.dtype, device=low.device) + 0.5) / POINTS
    width = (high - low).clamp(min=0)
    return low + width * share, (width / POINTS).expand(*low.shape[:2], POINTS)


def _normal(z: Tensor) -> Tensor:
    return torch.exp(-z * z / 2) / (2 * torch.pi) ** 0.5
