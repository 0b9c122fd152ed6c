"""Categorical distributions, dense over the vocabulary or sparse on a few ids.

Draws are exponential races, argmax(p / E), as in `torch.multinomial`; so two distributions can share noise per unit id
(Gumbel sharing). The coupling is the maximal one of Leviathan et al. (arXiv 2211.17192) and Chen et al.
(2302.01318): keep x with probability min(1, p(x) / q(x)), else draw from the normalised (p - q)+.
Guarantee: y ~ p exactly; P(y = x) = 1 - TV(p, q), the most that any coupling reaches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mmspec.core.distributions.distribution import CouplesTarget, Distribution, DrawsUnits, take_nodes
from mmspec.core.noise import Noise, Substream


@dataclass(frozen=True)
class Categorical(DrawsUnits):
    """A categorical distribution at every node."""

    probs: Tensor  # `[batch, node, size]` float32, normalised
    # `[batch, node, size]` int64 unit ids of a sparse distribution; None if `size` is the vocabulary
    ids: Tensor | None = None
    vocab: int = 0  # vocabulary size of a sparse distribution; dense ones do not need it
    # `[batch, node, size]`, if `probs` was made as their softmax: kernels draw from these. It is not copied by
    # `replace`, so that it cannot contradict other `probs`.
    logits: Tensor | None = field(default=None, init=False, compare=False, repr=False)

    @staticmethod
    def of_logits(logits: Tensor) -> "Categorical":
        """Dense distribution of `logits [batch, node, vocab]`, in float32."""
        made = Categorical(torch.softmax(logits.float(), -1))
        object.__setattr__(made, "logits", logits)
        return made

    @staticmethod
    def cat(distributions: "Sequence[Categorical]") -> "Categorical":
        """Distributions joined along the nodes: all dense, or all sparse on equally many ids."""
        ids = [distribution.ids for distribution in distributions if distribution.ids is not None]
        assert len(ids) in (0, len(distributions)), "dense and sparse distributions cannot be joined"
        probs = torch.cat([distribution.probs for distribution in distributions], 1)
        return Categorical(probs, torch.cat(ids, 1) if ids else None, distributions[0].vocab)

    @staticmethod
    def top(distribution: "Categorical", k: int) -> "Categorical":
        """The sparse distribution of the `k` likeliest units, renormalised."""
        probs, ids = distribution.probs.topk(k, -1)
        return Categorical(probs / probs.sum(-1, keepdim=True), ids, distribution.size)

    @property
    def size(self) -> int:
        """Vocabulary size."""
        return self.vocab if self.ids is not None else self.probs.shape[-1]

    def race(self, noise: Noise) -> Tensor:
        """p / E on the support, `[batch, node, size]`: its argmax is a draw, its top k draws without replacement."""
        return self.probs / self._exponential(noise)

    def draw(self, noise: Noise) -> Tensor:
        return self._unit(self.race(noise).argmax(-1))

    def couple(self, draft: Distribution, x: Tensor, noise: Noise, follows: Tensor | None = None) -> Tensor:
        """As in `Distribution`.

        Args:
            draft: What the drafted units were drawn from.
            x: The drafted units, `[batch, node]`.
            noise: Fresh in every round.
            follows: `[batch, node]` bool: nodes that are coupled; the others draw freely, and noise over the vocabulary
                is computed once for both. None: all nodes are coupled.
        """
        if not isinstance(draft, Categorical) and isinstance(draft, CouplesTarget):
            return draft.couple_target(self, x, noise, follows)
        if not isinstance(draft, Categorical):
            raise TypeError(f"a categorical target cannot be coupled with a {type(draft).__name__} draft")
        p, q = self.of(x), draft.of(x)
        keep = noise.substream(Substream.COIN).uniform() * q < p
        residual = self.residual(draft)
        # Equal distributions leave no residual: x is kept then, except for rounding, which falls back to p.
        left = residual.sum(-1) > 0
        if follows is None:
            free = noise.substream(Substream.RESIDUAL)
        else:
            keep, left, free = keep & follows, left & follows, noise.where(follows, Substream.RESIDUAL)
        race = torch.where(left[..., None], residual, self.probs) / self._exponential(free)
        return torch.where(keep, x, self._unit(race.argmax(-1)))

    def residual(self, draft: "Categorical") -> Tensor:
        """(p - q)+ on the support of p, not normalised: `[batch, node, size]`."""
        return (self.probs - draft.on(self.ids)).clamp(min=0)

    def of(self, x: Tensor) -> Tensor:
        """Probability of `x [batch, node]`."""
        if self.ids is None:
            return self.probs.gather(-1, x[..., None])[..., 0]
        return (self.probs * (self.ids == x[..., None])).sum(-1)

    def on(self, ids: Tensor | None) -> Tensor:
        """Probabilities of `ids [batch, node, k]`, or of the whole vocabulary."""
        if self.ids is None:
            dense = self.probs
        else:
            dense = self.probs.new_zeros(*self.probs.shape[:-1], self.size).scatter_(-1, self.ids, self.probs)
        return dense if ids is None else dense.gather(-1, ids)

    def take(self, nodes: Tensor) -> "Categorical":
        ids = None if self.ids is None else take_nodes(self.ids, nodes)
        return Categorical(take_nodes(self.probs, nodes), ids, self.vocab)

    def confidence(self) -> Tensor:
        return self.probs.amax(-1).log()

    def finite(self) -> Tensor:
        return self.probs.sum(-1) > 0  # False for NaN (the softmax of logits that are all -inf, too) and for no mass

    def _exponential(self, noise: Noise) -> Tensor:
        return noise.exponential(self.size) if self.ids is None else noise.exponential_at(self.ids)

    def _unit(self, index: Tensor) -> Tensor:
        return index if self.ids is None else self.ids.gather(-1, index[..., None])[..., 0]
