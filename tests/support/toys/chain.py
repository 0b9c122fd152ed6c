"""Toy of a diffusion head: every step's mean is linear in the state and the condition, so that tokens are Gaussian."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmspec.core.distributions import DenoisingChain, Gaussian
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.testing.toys.cache import UnitsCache
from mmspec.testing.toys.gaussian import GaussianTarget


@dataclass
class LinearHead:
    """x_{t+1} ~ N(carried x_t + added c, sigma_t²): the token is N(c, `spread`²) by `LinearHead.of`."""

    dim: int  # numbers of a token
    carried: float  # how much of the state is kept at each step
    added: float  # how much of the condition `c [m, dim]` is added
    sigmas: Tensor  # `[steps]`
    carry: Tensor  # `[steps]` float: `carried` as drafts may use it; 0 hides it
    calls: int = 0  # evaluations so far, of all nodes together

    @classmethod
    def of(cls, dim: int, steps: int = 4, carried: float = 0.6, sigma: float = 0.5, carry: bool = True) -> "LinearHead":
        """Steps of equal sigma; the token's mean is the condition."""
        added = 1 / sum(carried**step for step in range(steps))
        return cls(dim, carried, added, torch.full((steps,), sigma), torch.full((steps,), carried * carry))

    @property
    def spread(self) -> float:
        """Standard deviation of the token, given its condition."""
        variance = 1.0
        for sigma in self.sigmas.tolist():
            variance = self.carried**2 * variance + sigma**2
        return variance**0.5

    def mean(self, x: Tensor, step: int, condition: Tensor) -> Tensor:
        self.calls += 1
        return self.carried * x + self.added * condition


class ChainTarget:
    """The grid of `GaussianTarget`, with its means as conditions of a denoising head.

    Args:
        grid: Gives each token's condition; its sigma becomes the head's `spread`, so that its joint is this target's.
        head: The denoising head.
    """

    offers = frozenset({"continuous", "grow", "truncate"})
    vocab: int | None = None

    def __init__(self, grid: GaussianTarget, head: LinearHead) -> None:
        self.grid, self.head = grid, head
        self.grid.sigma = head.spread

    @classmethod
    def random(cls, width: int, head: LinearHead, seed: int, gain: float = 0.6) -> "ChainTarget":
        """A random grid, as `GaussianTarget.random` makes it."""
        return cls(GaussianTarget.random(width, head.dim, seed, gain), head)

    def start(self, inputs: int, limit: int, width: int) -> Prefill:
        """`inputs`: how many rows. The prompt has no tokens."""
        started = self.grid.start(inputs, limit, width)
        return replace(started, output=self._output(started.output))

    def verify(self, cache: UnitsCache, draft: Draft, first: int = 0) -> TargetOutput:
        return self._output(self.grid.verify(cache, draft, first))

    def commit(self, cache: UnitsCache, path: Tensor, count: Tensor) -> None:
        self.grid.commit(cache, path, count)

    def truncate(self, cache: UnitsCache, length: Tensor) -> None:
        self.grid.truncate(cache, length)

    def joint(self, length: int) -> tuple[Tensor, Tensor]:
        """Mean and covariance of the first `length` tokens, flattened."""
        return self.grid.joint(length)

    def _output(self, output: TargetOutput) -> TargetOutput:
        assert isinstance(output.distribution, Gaussian)
        return TargetOutput(distribution=DenoisingChain(output.distribution.mean, self.head))
