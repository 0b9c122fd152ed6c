"""Respaced denoising chains of the kind that MAR's heads were trained for.

Cosine schedule (Nichol & Dhariwal, arXiv 2102.09672, eq. 17) of 1000 times in float64, of which a chain takes some,
and variances that the network interpolates between the smallest and the largest that make sense (eq. 15).
diffusers' `DDPMScheduler` is close, but no setting of it is this chain: its betas are float32, none of its spacings
steps from one rounded time to the one before, and its smallest last variance is another.
"""

import math
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise, repeat

import torch
from torch import Tensor

TIMES = 1000
"""Times that the heads were trained with."""


@dataclass(frozen=True)
class Respaced:
    """The chain's steps, `0 … len - 1`; sampling runs from the last to step 0, which adds no noise.

    Attributes:
        times: The time, of 1000, that the network is told at every step.
        recip, recipm1: x0 = recip · x - recipm1 · eps.
        of_x0, of_x: The mean is of_x0 · x0 + of_x · x.
        least, most: Bounds of the log-variance.
    """

    times: tuple[int, ...]
    recip: tuple[float, ...]
    recipm1: tuple[float, ...]
    of_x0: tuple[float, ...]
    of_x: tuple[float, ...]
    least: tuple[float, ...]
    most: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.times)

    def posterior(self, x: Tensor, out: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of the next state.

        Args:
            x: `[…, dim]` the state.
            out: `[…, 2 · dim]` what the network says: noise, and where between the bounds the log-variance is (-1, 1).
            step: Index of the step.

        Returns:
            `[…, dim]` each, float32.
        """
        noise, between = out.float().chunk(2, -1)
        x0 = self.recip[step] * x - self.recipm1[step] * noise
        share = (between + 1) / 2
        log_variance = share * self.most[step] + (1 - share) * self.least[step]
        return self.of_x0[step] * x0 + self.of_x[step] * x, log_variance


@cache
def respaced(steps: int) -> Respaced:
    """The chain of so many steps, evenly spaced over the times, first and last included (MAR's "100").

    Raises:
        ValueError: Fewer than two steps, or more than there are times.
    """
    if not 2 <= steps <= TIMES:
        raise ValueError(f"a denoising chain has 2 to {TIMES} steps, not {steps}")
    stride = (TIMES - 1) / (steps - 1)
    times = [round(time) for time in accumulate(repeat(stride, steps - 1), initial=0.0)]
    kept = torch.cumprod(1 - _betas(), 0)[times]
    before = torch.cat([kept.new_ones(1), kept[:-1]])
    betas = 1 - kept / before
    variance = betas * (1 - before) / (1 - kept)  # of the last step 0, which has no logarithm: its neighbour's is taken
    coefficients = (
        (1 / kept).sqrt(),
        (1 / kept - 1).sqrt(),
        betas * before.sqrt() / (1 - kept),
        (1 - before) * (1 - betas).sqrt() / (1 - kept),
        torch.cat([variance[1:2], variance[1:]]).log(),
        betas.log(),
    )
    return Respaced(tuple(times), *(tuple(c.tolist()) for c in coefficients))


def _betas() -> Tensor:
    """`[TIMES]` float64."""
    kept = [math.cos((time / TIMES + 0.008) / 1.008 * math.pi / 2) ** 2 for time in range(TIMES + 1)]
    ratios = [1 - after / now for now, after in pairwise(kept)]
    return torch.tensor(ratios, dtype=torch.float64).clamp(max=0.999)
