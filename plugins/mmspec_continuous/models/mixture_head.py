"""A head of Gaussian mixtures: one matrix product, no denoising steps.

GIVT (Tschannen et al., arXiv 2312.02116): weights, means and scales of K components with diagonal covariances. The
distribution is known in closed form, so that a token costs one pass of the transformer.
Guidance is refused: p^(1 + w) / p_null^w of two mixtures is no mixture, and cannot be drawn from or coupled exactly
(GIVT approximates it, by one Gaussian per token or by rejection sampling).
Knobs: `components` (larger: sharper distributions); `least` (the smallest scale; larger: more drafts are accepted, and
tokens are noisier).
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
        dim: Numbers per token.
        input_dim: Width of the transformer's vectors.
        components: Components of the mixture.
        least: Smallest scale of a component; tokens have about unit variance.
    """

    def __init__(self, dim: int, input_dim: int, components: int, least: float) -> None:
        super().__init__()
        self.dim, self.components, self.least = dim, components, least
        self.out = nn.Linear(input_dim, components * (1 + 2 * dim))

    def project(self, hidden: Tensor) -> Tensor:
        """Parameters of mixtures `[…, parameters]` of the transformer's vectors `[…, input_dim]`."""
        return self.out(hidden)

    def distribution(
        self, parameters: Tensor, null: Tensor | None, scale: float | Tensor | None, head: Any
    ) -> GaussianMixture:
        """The distribution of tokens with `parameters [batch, node, parameters]`; the other arguments are None."""
        assert null is None, "a mixture is not guided"
        weights, means, scales = self._parts(parameters)
        return GaussianMixture(weights.exp(), means, scales)

    def loss(self, parameters: Tensor, tokens: Tensor, generator: torch.Generator, repeats: int = 1) -> Tensor:
        """Negative log-likelihood of tokens `[batch, cell, dim]`, in nats per number; `generator` is not used."""
        weights, means, scales = self._parts(parameters)
        z = (tokens[..., None, :] - means) / scales
        parts = weights - (z.square() / 2 + scales.log()).sum(-1)
        return math.log(2 * math.pi) / 2 - parts.logsumexp(-1).mean() / self.dim

    def _parts(self, parameters: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-weights `[…, K]`, means and scales `[…, K, dim]`, float32."""
        weights, means, scales = parameters.float().split(
            [self.components, self.components * self.dim, self.components * self.dim], -1
        )
        means, scales = (t.unflatten(-1, (self.components, self.dim)) for t in (means, scales))
        return weights.log_softmax(-1), means, F.softplus(scales) + self.least
