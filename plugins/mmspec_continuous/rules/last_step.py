"""Two denoising chains at their last step, after the same noise: where the published rule tests, and how far it is off.

Given that noise, the last step is a Gaussian on either side, N(mean, sigma_0²) and N(draft, sigma_0²). Along the line
through the two means they are, in units of sigma_0 and counted from the target's, N(0, 1) and N(d, 1); across it they
are equal. So residuals and total variation are integrals over one number.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions import DenoisingChain, Distribution, Gaussian, Schedule
from mmspec.core.noise import Noise, Substream

REACH = 8.0
"""Standard deviations beyond which nothing is summed."""
POINTS = 192
"""Of the integral, on either side of the middle between the means."""

Finish = Callable[[Tensor], Tensor]
"""From last states `[batch, node, dim]` to draws of the target's distribution."""


@dataclass(frozen=True)
class LastStep:
    """At every drafted node.

    Attributes:
        mean: The target's, `[batch, node, dim]`.
        draft: The draft's.
        sigma: Of both.
        log_factor: Log of what the paper multiplies the ratio of the densities by.
    """

    mean: Tensor
    draft: Tensor
    sigma: float
    log_factor: float = 0.0

    def log_ratio(self, x: Tensor, tau: float) -> Tensor:
        """Log of the tempered factor · p(x) / q(x) of `x [batch, node, dim]`: `[batch, node]`."""
        p, q = ((x - mean) / self.sigma for mean in (self.mean, self.draft))
        return ((q * q).sum(-1) - (p * p).sum(-1)) / (2 * tau) + self.log_factor

    def residual(self, noise: Noise, tries: int) -> Tensor:
        """Draws from the normalised (factor · p - q)+, `[batch, node, dim]`.

        y ~ p is taken with probability (1 - q(y) / (factor · p(y)))+. Where none of `tries` is, a draw from p stands.
        """
        line, apart = self._line()
        squared, turn, coin = noise.substream(Substream.RESIDUAL).exponential(3 * (tries + 1)).chunk(3, -1)
        # Box and Muller: half a squared radius is exponential, and what is left of 1 after a turn is uniform.
        along = torch.sqrt(2 * squared) * torch.cos(2 * torch.pi * torch.expm1(-turn))
        taken = -coin > apart * along - apart * apart / 2 - self.log_factor
        taken[..., -1] = True
        along = along.gather(-1, taken.int().argmax(-1, keepdim=True))
        across = noise.normal(line.shape[-1])  # a free draw's numbers, which nodes with a draft leave alone
        across = across - line * (across * line).sum(-1, keepdim=True)
        return self.mean + self.sigma * (across + along * line)

    def bias(self, tau: float, tries: int) -> tuple[Tensor, Tensor]:
        """Of what comes out at each node, given the shared noise: `[batch, node]` each.

        Returns:
            Total variation from the target's last step, and the chance of the draft less an exact rule's.
        """
        apart = self._line()[1].double()
        middle = apart / 2
        at, weight = zip(
            _spread(torch.full_like(apart, -REACH), middle.clamp(max=REACH)),
            _spread(torch.maximum(middle, apart - REACH), apart + REACH),
            strict=True,
        )
        u, weight = torch.cat(at, -1), torch.cat(weight, -1)
        p, q = _normal(u), _normal(u - apart)
        log_ratio = apart * apart / 2 - u * apart
        kept = q * (log_ratio / tau + self.log_factor).clamp(max=0).exp()
        left = p * (-torch.expm1(-log_ratio - self.log_factor)).clamp(min=0)
        chance, hit = ((values * weight).sum(-1, keepdim=True) for values in (kept, left))
        missed = (1 - hit.clamp(0, 1)) ** tries
        rest = (1 - missed) * left / hit.clamp(min=torch.finfo(hit.dtype).tiny) + missed * p
        out = kept + (1 - chance).clamp(min=0) * rest
        varied = ((out - p).abs() * weight).sum(-1) / 2
        return varied, chance[..., 0] - (torch.minimum(p, q) * weight).sum(-1)

    def _line(self) -> tuple[Tensor, Tensor]:
        """The direction from the target's mean to the draft's `[batch, node, dim]`, and how far it is `[…, 1]`."""
        between = (self.draft - self.mean) / self.sigma
        apart = between.norm(dim=-1, keepdim=True)
        return between / apart.clamp(min=torch.finfo(apart.dtype).tiny), apart


def met(
    distribution: Distribution, draft: Distribution, follows: Tensor, noise: Noise, factor: int
) -> tuple[LastStep, Tensor, Finish]:
    """Lead the target through the draft's noise, up to the last step.

    Args:
        distribution: The target's, `[batch, node]`: denoising chains, or Gaussians, which are chains of one step.
        draft: What the drafted nodes were drawn from, `[batch, node - 1]`.
        follows: `[batch, node - 1]` bool: nodes whose child was drawn; the others, and the last, are free draws.
        noise: Of the free draws.
        factor: Power of the paper's factor: 1, 0 for none, -1 upside down.

    Returns:
        The last step; last states `[batch, node, dim]` where nothing is tested; and how draws are made of such.

    Raises:
        ValueError: There is no such step.
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
    schedule, path = distribution.schedule, distribution.along(draft, follows, noise)
    own, steps = distribution.with_draws(path), distribution.schedule.steps
    theirs: Schedule = draft.schedule  # type: ignore[attr-defined]
    if theirs.sigmas[-1] != schedule.sigmas[-1]:
        raise ValueError(
            f"all tokens, denoising step {steps - 1} of {steps} (the last one): the draft's sigma is "
            f"{theirs.sigmas[-1]:g}, the target's {schedule.sigmas[-1]:g}; here they have to be one"
        )
    ratios = sum(math.log(a / b) for a, b in zip(theirs.sigmas[:-1], schedule.sigmas[:-1], strict=True))
    log_factor = factor * distribution.head.dim * ratios
    means: Tensor = draft.means[:, :, -1]  # type: ignore[attr-defined]
    step = LastStep(own.means[:, :-1, -1], means, schedule.sigmas[-1], log_factor)

    def finish(last: Tensor) -> Tensor:
        return torch.cat([path[:, :, :steps], last[:, :, None], path[:, :, steps + 1 :]], 2)

    return step, distribution.units(path), finish


def _spread(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Midpoints between `low` and `high [batch, node, 1]`, and their weight: `[batch, node, points]`."""
    share = (torch.arange(POINTS, dtype=low.dtype, device=low.device) + 0.5) / POINTS
    width = (high - low).clamp(min=0)
    return low + width * share, (width / POINTS).expand(*low.shape[:2], POINTS)


def _normal(z: Tensor) -> Tensor:
    return torch.exp(-z * z / 2) / (2 * torch.pi) ** 0.5
