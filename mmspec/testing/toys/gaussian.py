"""Toy continuous picture: a grid of Gaussian tokens whose means are linear in the tokens to the left and above."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions import Distribution, Gaussian, take_nodes
from mmspec.core.drafters.jacobi import Window
from mmspec.core.live import Live
from mmspec.core.noise import DraftNoise
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.testing.oracles import linear_joint
from mmspec.testing.toys.cache import UnitsCache


class GaussianTarget:
    """x ~ N(bias + left · x_left + above · x_above, sigma² I); neighbours outside of the grid count as zero.

    The maps are `[dim, dim]`, and the bias `[dim]`. All tokens have one sigma, as the reflection coupling needs it.
    """

    offers = frozenset({"continuous", "grow", "truncate"})
    vocab: int | None = None

    def __init__(self, width: int, left: Tensor, above: Tensor, bias: Tensor, sigma: float) -> None:
        self.width = width
        self.left, self.above, self.bias = left, above, bias
        self.sigma = sigma

    @classmethod
    def random(cls, width: int, dim: int, seed: int, gain: float = 0.6, sigma: float = 0.5) -> "GaussianTarget":
        """Maps of spectral norm `gain`; a smaller gain or a larger sigma accepts more."""
        generator = torch.Generator().manual_seed(seed)
        left, above = torch.randn(2, dim, dim, generator=generator)
        left, above = (w / torch.linalg.matrix_norm(w, 2) * gain for w in (left, above))
        return cls(width, left, above, torch.randn(dim, generator=generator), sigma)

    def start(self, inputs: int, limit: int, width: int) -> Prefill:
        """`inputs`: how many rows. The prompt has no tokens."""
        tokens = torch.zeros(inputs, limit + width, len(self.bias))
        zero = torch.zeros(inputs, dtype=torch.int64)
        cache = UnitsCache(units=tokens, length=zero, width=width)
        return Prefill(cache, self._output(cache, tokens[:, :1], zero[:, None]), tokens[:, :0], zero)

    def verify(self, cache: UnitsCache, draft: Draft, first: int = 0) -> TargetOutput:
        assert draft.index.is_chain
        place = cache.length[:, None] + torch.arange(draft.nodes)
        cache.units.scatter_(1, place[..., None].expand_as(draft.units), draft.units)
        return self._output(cache, draft.units[:, first:], place[:, first:] + 1)

    def commit(self, cache: UnitsCache, path: Tensor, count: Tensor) -> None:
        cache.length = cache.length + count  # the accepted nodes of a chain are in their places already

    def truncate(self, cache: UnitsCache, length: Tensor) -> None:
        cache.length = length

    def _output(self, cache: UnitsCache, before: Tensor, place: Tensor) -> TargetOutput:
        """Distributions at `place [batch, node]`; `before [batch, node, dim]` are the tokens that precede them."""
        left = torch.where((place % self.width == 0)[..., None], 0.0, before)
        up = take_nodes(cache.units, (place - self.width).clamp(min=0))
        above = torch.where((place < self.width)[..., None], 0.0, up)
        return TargetOutput(distribution=Gaussian(self.bias + left @ self.left.T + above @ self.above.T, self.sigma))

    def joint(self, length: int) -> tuple[Tensor, Tensor]:
        """Mean `[n]` and covariance `[n, n]` of the first `length` tokens, flattened: n = length · dim."""
        dim = len(self.bias)
        weights = torch.zeros(length, dim, length, dim)
        for place in range(length):
            if place % self.width:
                weights[place, :, place - 1] = self.left
            if place >= self.width:
                weights[place, :, place - self.width] = self.above
        size = length * dim
        return linear_joint(weights.reshape(size, size), self.bias.repeat(length), torch.full((size,), self.sigma))


@dataclass(frozen=True)
class RepeatLeft:
    """A Gaussian draft for new slots of a Jacobi window: its mean is that of the last slot that was drawn."""

    sigma: float  # the target's sigma: reflection needs the same covariance on both sides

    reach = 0

    def fill(self, live: Live, window: Window, noise: DraftNoise) -> tuple[Tensor, Distribution | None]:
        mean = live.root[:, None]
        if isinstance(window.distribution, Gaussian):
            drawn = window.drawn.sum(1, keepdim=True)  # drawn slots come first
            last = take_nodes(window.distribution.mean, (drawn - 1).clamp(min=0))
            mean = torch.where((drawn > 0)[..., None], last, mean)
        distribution = Gaussian(mean.expand_as(window.units), self.sigma)
        return distribution.draw(noise.chain(1, window.units.shape[1])), distribution
