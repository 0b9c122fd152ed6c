"""A head of Gaussian mixtures: one product, no steps.

GIVT (Tschannen et al., arXiv 2312.02116): weights, means and scales of K components with diagonal covariances. The
distribution is known in closed form, so one pass of the transformer is all that a token costs.
Guidance is refused: p^(1 + w) / p_null^w of two mixtures is no mixture, and has no normal form that could be drawn from
or coupled exactly (GIVT approximates it, one Gaussian a unit, or rejects by guesses).
Knobs: `components` (more: sharper distributions); `least` (the smallest scale: larger accepts more, and tokens are
noisier).
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.distributions import GaussianMixture


class MixtureHead(nn.Module):
    """The head.

    Args:
        dim: Numbers of a token.
        told: Width of the transformer's vectors.
        components: Of the mixture.
        least: Smallest scale, where tokens have about unit variance.
    """

    def __init__(self, dim: int, told: int, components: int, least: float) -> None:
        super().__init__()
        self.dim, self.components, self.least = dim, components, least
        self.out = nn.Linear(told, components * (1 + 2 * dim))

    def tell(self, hidden: Tensor) -> Tensor:
        """Parameters of mixtures, flat, of vectors `[…, told]`."""
        return self.out(hidden)

    def distribution(self, told: Tensor, null: Tensor | None, scale: float | Tensor, head: Any) -> GaussianMixture:
        """The distribution of tokens of parameters `[batch, node, parameters]`; there is no guidance."""
        assert null is None, "a mixture is not guided"
        weights, means, scales = self._parts(told)
        return GaussianMixture(weights.exp(), means, scales)

    def loss(self, told: Tensor, tokens: Tensor, generator: torch.Generator, repeats: int = 1) -> Tensor:
        """Negative log-likelihood of tokens `[batch, cell, dim]`, in nats a number; nothing is drawn for it."""
        weights, means, scales = self._parts(told)
        z = (tokens[..., None, :] - means) / scales
        parts = weights - (z.square() / 2 + scales.log()).sum(-1)
        return math.log(2 * math.pi) / 2 - parts.logsumexp(-1).mean() / self.dim

    def _parts(self, told: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-weights `[…, K]`, means and scales `[…, K, dim]`, float32."""
        weights, means, scales = told.float().split(
            [self.components, self.components * self.dim, self.components * self.dim], -1
        )
        means, scales = (t.unflatten(-1, (self.components, self.dim)) for t in (means, scales))
        return weights.log_softmax(-1), means, F.softplus(scales) + self.least
