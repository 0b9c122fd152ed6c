"""The respaced denoising chains of MAR's diffusion heads.

Cosine schedule (Nichol & Dhariwal, arXiv 2102.09672, eq. 17) of 1000 times in float64, of which a chain takes some; the
network interpolates the log-variance of a step between its lower and upper bound (eq. 15).
diffusers' `DDPMScheduler` is close, but no setting of it is this chain: its betas are float32, none of its spacings
takes the same rounded times, and its lower bound of the last variance is another.
"""

import math
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise, repeat

import torch
from torch import Tensor

TIMES = 1000
"""Diffusion times that the heads were trained with."""


@dataclass(frozen=True)
class Respaced:
    """The steps `0 … len - 1` of a chain; sampling runs from the last one to step 0, which adds no noise.

    Attributes:
        times: Diffusion time of every step, of 1000: an input of the network.
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
            x: The state, `[…, dim]`.
            out: The network's output, `[…, 2 · dim]`: noise, and where the log-variance lies between its bounds (-1 to
                1).
            step: Index of the step.

        Returns:
            Mean and log-variance, `[…, dim]` float32 each.
        """
        noise, between = out.float().chunk(2, -1)
        x0 = self.recip[step] * x - self.recipm1[step] * noise
        share = (between + 1) / 2
        log_variance = share * self.most[step] + (1 - share) * self.least[step]
        return self.of_x0[step] * x0 + self.of_x[step] * x, log_variance


@cache
def respaced(steps: int) -> Respaced:
    """The chain of `steps` times, evenly spaced, the first and the last included (`num_sampling_steps="100"` of MAR).

    Raises:
        ValueError: Fewer than two steps, or more than there are times.
    """
    if not 2 <= steps <= TIMES:
        raise ValueError(f"a denoising chain has 2 to {TIMES} steps, not {steps}")
    stride = (TIMES - 1) / (steps - 1)
    times = [round(time) for time in accumulate(repeat(stride, steps - 1), initial=0.0)]
    alpha_bar = torch.cumprod(1 - _betas(), 0)[times]
    before = torch.cat([alpha_bar.new_ones(1), alpha_bar[:-1]])
    betas = 1 - alpha_bar / before
    variance = betas * (1 - before) / (1 - alpha_bar)  # 0 at step 0, where the next step's is used
    coefficients = (
        (1 / alpha_bar).sqrt(),
        (1 / alpha_bar - 1).sqrt(),
        betas * before.sqrt() / (1 - alpha_bar),
        (1 - before) * (1 - betas).sqrt() / (1 - alpha_bar),
        torch.cat([variance[1:2], variance[1:]]).log(),
        betas.log(),
    )
    return Respaced(tuple(times), *(tuple(c.tolist()) for c in coefficients))


def _betas() -> Tensor:
    """The cosine schedule's betas, `[TIMES]` float64."""
    bars = [math.cos((time / TIMES + 0.008) / 1.008 * math.pi / 2) ** 2 for time in range(TIMES + 1)]
    ratios = [1 - after / now for now, after in pairwise(bars)]
    return torch.tensor(ratios, dtype=torch.float64).clamp(max=0.999)
