"""Toy of GIVT (arXiv 2312.02116): every token is a mixture of Gaussians whose means depend on the token before."""

import torch
from torch import Tensor

from mmspec.core.distributions import GaussianMixture
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.testing.toys.cache import UnitsCache


class MixtureTarget:
    """x_i ~ sum_k w_k N(b_k + A x_{i-1}, s_{i,k}² I), where s_{i,k} alternates with i.

    Args:
        weights: `[component]`.
        offsets: `[component, dim]`: b.
        gain: `[dim, dim]`: A.
        sigmas: `[2, component]`: standard deviations of even and of odd tokens.
        coupling: The coupling of `GaussianMixture`.
    """

    offers = frozenset({"continuous", "grow", "truncate"})
    vocab: int | None = None

    def __init__(self, weights: Tensor, offsets: Tensor, gain: Tensor, sigmas: Tensor, coupling: str) -> None:
        self.weights, self.offsets, self.gain, self.sigmas, self.coupling = weights, offsets, gain, sigmas, coupling

    @classmethod
    def random(
        cls, dim: int, seed: int, components: int = 3, gain: float = 0.6, coupling: str = "common"
    ) -> "MixtureTarget":
        """A map of spectral norm `gain`; odd tokens are 1.3 times as wide as even ones."""
        generator = torch.Generator().manual_seed(seed)
        mix = torch.randn(dim, dim, generator=generator)
        sigmas = 0.3 + 0.4 * torch.rand(components, generator=generator)
        weights = torch.rand(components, generator=generator).add(0.3)
        offsets = torch.randn(components, dim, generator=generator)
        mix = mix / torch.linalg.matrix_norm(mix, 2) * gain
        return cls(weights / weights.sum(), offsets, mix, torch.stack([sigmas, 1.3 * sigmas]), coupling)

    def start(self, inputs: int, limit: int, width: int) -> Prefill:
        """`inputs`: how many rows. The prompt has no tokens."""
        zero = torch.zeros(inputs, dtype=torch.int64)
        tokens = torch.zeros(inputs, 1, self.offsets.shape[1])
        cache = UnitsCache(units=tokens, length=zero, width=width)
        return Prefill(cache, self._output(tokens, zero[:, None]), tokens[:, :0], zero)

    def verify(self, cache: UnitsCache, draft: Draft, first: int = 0) -> TargetOutput:
        place = cache.length[:, None] + torch.arange(draft.nodes)
        return self._output(draft.units[:, first:], place[:, first:] + 1)

    def commit(self, cache: UnitsCache, path: Tensor, count: Tensor) -> None:
        cache.length = cache.length + count

    def truncate(self, cache: UnitsCache, length: Tensor) -> None:
        cache.length = length

    def normalised(self, tokens: Tensor) -> Tensor:
        """Tokens `[rows, length, dim]` as independent standard normal numbers: `[rows, length · dim]`.

        Each coordinate is mapped by its conditional distribution function, given all before it (Rosenblatt, 1952).
        """
        tokens = tokens.double()
        before = torch.cat([torch.zeros_like(tokens[:, :1]), tokens[:, :-1]], 1)
        means = self.offsets.double() + (before @ self.gain.double().T)[:, :, None]
        sigmas = self.sigmas.double()[torch.arange(tokens.shape[1]) % 2]  # [length, component]
        z = (tokens[:, :, None] - means) / sigmas[..., None]
        each = -(z * z) / 2 - sigmas.log()[..., None]
        earlier = torch.nn.functional.pad(each.cumsum(-1)[..., :-1], (1, 0))
        share = torch.softmax(self.weights.double().log()[:, None] + earlier, 2)
        uniform = (share * torch.special.ndtr(z)).sum(2)
        return torch.special.ndtri(uniform).flatten(1)

    def _output(self, before: Tensor, place: Tensor) -> TargetOutput:
        """Distributions at `place [batch, node]`, after `before [batch, node, dim]`."""
        means = self.offsets + (before @ self.gain.T)[:, :, None]
        weights = self.weights.expand(*place.shape, -1)
        return TargetOutput(distribution=GaussianMixture(weights, means, self.sigmas[place % 2], self.coupling))
