"""Samplers: from noise to a frame in a few steps of a network.

A sampler defines the time that the network reads at each step and the state after it. The noise of step s of frame n is
a function of seed, n and s alone (`Denoiser.noise`), so a frame that is made ahead of time is the same frame.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor


class Sampler(Protocol):
    """A few steps from noise to a frame."""

    @property
    def context_time(self) -> float:
        """Time that the network reads for finished frames."""

    @property
    def steps(self) -> int: ...

    @property
    def noisy(self) -> bool:
        """True if steps after the first draw noise, too."""

    def time(self, step: int) -> float:
        """Time that the network reads at a step; step 0 is pure noise."""

    def begin(self, noise: Tensor) -> Tensor:
        """The state at step 0, from standard normal noise."""

    def advance(self, x: Tensor, out: Tensor, step: int, noise: Tensor | None) -> Tensor:
        """The state at `step + 1` (after the last step: the frame), given the network's output `out` at `step`."""


@dataclass(frozen=True)
class FlowSampler:
    """Euler steps along the velocity of a straight path (flow matching, arXiv 2210.02747); noise is drawn once."""

    steps: int = 8  # number of steps; more are more accurate, and cost is proportional
    context_time: float = 0.0  # time of finished frames; higher is steadier over long clips and less sharp
    noisy: bool = False

    def time(self, step: int) -> float:
        return 1.0 - step / self.steps

    def begin(self, noise: Tensor) -> Tensor:
        return noise

    def advance(self, x: Tensor, out: Tensor, step: int, noise: Tensor | None) -> Tensor:
        return x + (self.time(step + 1) - self.time(step)) * out


@dataclass(frozen=True)
class ConsistencySampler(FlowSampler):
    """Multistep consistency sampling (arXiv 2303.01469, Algorithm 1): predict the frame, then add noise again."""

    steps: int = 2  # number of predictions; a student is trained for one to four
    noisy: bool = True

    def advance(self, x: Tensor, out: Tensor, step: int, noise: Tensor | None) -> Tensor:
        clean = x - self.time(step) * out
        if step == self.steps - 1:
            return clean
        assert noise is not None, "every step but the last draws noise"
        return torch.lerp(clean, noise, self.time(step + 1))


@dataclass(frozen=True)
class OasisSampler:
    """DDIM steps of open-oasis (arXiv 2010.02502) for v (2202.00512) under a sigmoid schedule (2212.11972)."""

    steps: int = 10  # number of steps, spread over 1,000 training times
    # Time of finished frames; the published code labels them as slightly noisy without adding noise
    context_time: float = 14.0
    most: float = 20.0  # absolute value at which noise is clipped
    noisy: bool = False

    def time(self, step: int) -> float:
        return float(int(torch.linspace(-1, 999, self.steps + 1, dtype=torch.float32, device="cpu")[self.steps - step]))

    def begin(self, noise: Tensor) -> Tensor:
        return noise.clamp(-self.most, self.most)

    def advance(self, x: Tensor, out: Tensor, step: int, noise: Tensor | None) -> Tensor:
        kept = self.kept[int(self.time(step))].to(x.dtype)  # one number, on the host: no copy
        frame = kept.sqrt() * x - (1 - kept).sqrt() * out
        if step == self.steps - 1:
            return frame
        implied = ((1 / kept).sqrt() * x - frame) / (1 / kept - 1).sqrt()
        after = self.kept[int(self.time(step + 1))].to(x.dtype)
        return after.sqrt() * frame + (1 - after).sqrt() * implied

    @cached_property
    def kept(self) -> Tensor:
        """Share of the signal's variance at every training time: `[1000]` float32."""
        along = torch.linspace(-3, 3, 1001, dtype=torch.float64).sigmoid()
        whole = (along[-1] - along) / (along[-1] - along[0])
        return torch.cumprod((whole[1:] / whole[:-1]).clamp(min=0.001), 0).float()
