"""From noise to a frame in a few steps; every number that is drawn has a step's name on it.

A sampler knows how noisy each step is, what the network is told of it, and where the next step begins. The noise of
step s of frame n is a function of seed, n and s alone (`Denoiser.noise`), so that a frame made ahead of its time, or
made twice, is the same frame.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor


class Sampler(Protocol):
    """A few steps from noise to a frame.

    Attributes:
        context_time: What the network is told of frames that are finished.
        steps: How many there are.
        noisy: Whether steps after the first draw noise, too.
    """

    context_time: float
    steps: int
    noisy: bool

    def time(self, step: int) -> float:
        """What the network is told of the frame at hand; step 0 is pure noise."""
        ...

    def begin(self, noise: Tensor) -> Tensor:
        """The state at step 0 of standard normal noise."""
        ...

    def advance(self, x: Tensor, out: Tensor, step: int, noise: Tensor | None) -> Tensor:
        """The state at `step + 1` (behind the last step: the frame), given what the network said at `step`."""
        ...


@dataclass(frozen=True)
class FlowSampler:
    """Euler steps along the velocity of a straight path (flow matching, arXiv 2210.02747); draws noise once.

    Attributes:
        steps: More are closer to the path, and cost as much more.
        context_time: Higher lets the network trust earlier frames less: steadier over long clips, less sharp.
        shift: Above 1, more of the steps are spent where there is much noise.
    """

    steps: int = 8
    context_time: float = 0.0
    shift: float = 1.0
    noisy: bool = False

    def time(self, step: int) -> float:
        even = 1.0 - step / self.steps
        return self.shift * even / (1.0 + (self.shift - 1.0) * even)

    def begin(self, noise: Tensor) -> Tensor:
        return noise

    def advance(self, x: Tensor, out: Tensor, step: int, noise: Tensor | None) -> Tensor:
        return x + (self.time(step + 1) - self.time(step)) * out


@dataclass(frozen=True)
class ConsistencySampler:
    """Jumps to the frame and part of the way back (consistency models, arXiv 2303.01469, Algorithm 1).

    Attributes:
        steps: Jumps; a student is made for one to four.
        context_time: As in `FlowSampler`.
    """

    steps: int = 2
    context_time: float = 0.0
    noisy: bool = True

    def time(self, step: int) -> float:
        return 1.0 - step / self.steps

    def begin(self, noise: Tensor) -> Tensor:
        return noise

    def advance(self, x: Tensor, out: Tensor, step: int, noise: Tensor | None) -> Tensor:
        clean = x - self.time(step) * out
        if step == self.steps - 1:
            return clean
        assert noise is not None, "the way back needs noise of its own"
        return torch.lerp(clean, noise, self.time(step + 1))


@dataclass(frozen=True)
class OasisSampler:
    """open-oasis's DDIM steps (arXiv 2010.02502) for v (2202.00512) under a sigmoid schedule (2212.11972).

    Attributes:
        steps: Of 1,000 times.
        context_time: The published code labels earlier frames as a little noisy, without making them so.
        most: Noise is cut off there.
    """

    steps: int = 10
    context_time: float = 14.0
    most: float = 20.0
    noisy: bool = False

    def time(self, step: int) -> float:
        return float(int(torch.linspace(-1, 999, self.steps + 1, dtype=torch.float32, device="cpu")[self.steps - step]))

    def begin(self, noise: Tensor) -> Tensor:
        return noise.clamp(-self.most, self.most)

    def advance(self, x: Tensor, out: Tensor, step: int, noise: Tensor | None) -> Tensor:
        kept = self.kept[int(self.time(step))].to(x)
        frame = kept.sqrt() * x - (1 - kept).sqrt() * out
        if step == self.steps - 1:
            return frame
        implied = ((1 / kept).sqrt() * x - frame) / (1 / kept - 1).sqrt()
        after = self.kept[int(self.time(step + 1))].to(x)
        return after.sqrt() * frame + (1 - after).sqrt() * implied

    @cached_property
    def kept(self) -> Tensor:
        """Share of the signal's variance at every time: `[1000]` float32."""
        along = torch.linspace(-3, 3, 1001, dtype=torch.float64).sigmoid()
        whole = (along[-1] - along) / (along[-1] - along[0])
        return torch.cumprod((whole[1:] / whole[:-1]).clamp(min=0.001), 0).float()
