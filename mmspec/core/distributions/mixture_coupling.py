"""How two mixtures of Gaussians are tied, given x ~ q. Both ways are exact.

`maximal`: keep x with probability min(1 - slack, p(x) / q(x)); else draw from the normalised (p - (1 - slack) q)+, by
rejection: y ~ p is taken with probability (1 - (1 - slack) q(y) / p(y))+ (Thorisson, 2000; Gerber and Lee, 2020).
P(y = x) >= (1 - slack)(1 - TV(p, q)). Where p and q are almost equal, x is hardly ever refused, but what it left is
hard to hit: the slack bounds the expected tries by 1 / slack. Tries come in blocks, for refused nodes only, each
block twice as long as the last; one host read a block. Nothing is cut off: a node leaves the loop with its draw.

`common`: the component of x is drawn from its posterior, coupled maximally with the target's component, and x is
reflected between the common component's two Gaussians, at q's scale; where p's scale is another, the result is coupled
`maximal`ly with the Gaussian of p's scale (a chain of couplings is one). Another component takes over x's noise.
P(y = x) = sum_k min(w_p, w_q)(1 - TV_k) where scales are equal. A refused x leaves a y nearby.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mmspec.core.distributions.distribution import where_nodes
from mmspec.core.distributions.reflection import reflect
from mmspec.core.noise import Lane, Noise
from mmspec.core.philox import PhiloxNoise

if TYPE_CHECKING:
    from mmspec.core.distributions.mixture import GaussianMixture

TRIES, MOST_TRIES = 8, 1024
"""Tries of the first block, and of the largest."""


def maximal(p: "GaussianMixture", q: "GaussianMixture", x: Tensor, noise: Noise) -> Tensor:
    """y ~ p, given x ~ q `[batch, node, dim]`: by densities."""
    log_coin = -noise.lane(Lane.COIN).exponential(1)[..., 0]
    return _by_density(p, q, x, log_coin, noise.lane(Lane.RESIDUAL).exponential(2), p.finite())


def common(p: "GaussianMixture", q: "GaussianMixture", x: Tensor, noise: Noise) -> Tensor:
    """y ~ p, given x ~ q `[batch, node, dim]`: component by component."""
    size = p.weights.shape[-1]
    log_coins = -noise.lane(Lane.COIN).exponential(3)
    race = noise.lane(Lane.RESIDUAL).exponential(2 * size + 2)
    own = (torch.softmax(q.log_parts(x[:, :, None])[:, :, 0], -1) / race[..., :size]).argmax(-1, keepdim=True)
    left = (p.weights - q.weights).clamp(min=0)
    left = torch.where(left.sum(-1, keepdim=True) > 0, left, p.weights)
    other = (left / race[..., size : 2 * size]).argmax(-1, keepdim=True)
    kept = log_coins[..., :1] < p.weights.gather(-1, own).log() - q.weights.gather(-1, own).log()
    component = torch.where(kept, own, other)
    (mean, sigma), (mean_q, sigma_q) = ((m[:, :, 0], s[:, :, 0]) for m, s in (p.part(component), q.part(own)))
    near = reflect(x, mean_q, mean, sigma_q, log_coins[..., 1])
    rescaled = kept[..., 0] & (sigma != sigma_q).any(-1) & p.finite()
    near = _by_density(
        _one(p, mean, sigma), _one(p, mean, sigma_q), near, log_coins[..., 2], race[..., 2 * size :], rescaled
    )
    return where_nodes(kept[..., 0], near, mean + sigma * ((x - mean_q) / sigma_q))


COUPLINGS: Mapping[str, Callable[["GaussianMixture", "GaussianMixture", Tensor, Noise], Tensor]] = {
    "common": common,
    "maximal": maximal,
}


def _one(like: "GaussianMixture", mean: Tensor, sigma: Tensor) -> "GaussianMixture":
    """A single Gaussian at every node, of `mean` and `sigma [batch, node, dim]`."""
    return type(like)(torch.ones_like(mean[..., :1]), mean[:, :, None], sigma[:, :, None], slack=like.slack)


def _by_density(
    p: "GaussianMixture", q: "GaussianMixture", x: Tensor, log_coin: Tensor, seeds: Tensor, among: Tensor
) -> Tensor:
    """`maximal` at the nodes `among [batch, node]`, x elsewhere.

    Args:
        p: The target.
        q: The draft.
        x: `[batch, node, dim]`.
        log_coin: Log of a uniform, `[batch, node]`.
        seeds: `[batch, node, 2]` exponentials, which key the noise of what is drawn instead.
        among: Where both are distributions.
    """
    at = x[:, :, None]
    kept = (p.log_density(at) - q.log_density(at))[..., 0].clamp(max=math.log1p(-p.slack))
    rows, nodes = (among & ~(log_coin < kept)).nonzero(as_tuple=True)
    # A key a node, so that what a row draws does not depend on who else was refused.
    key = seeds[rows, nodes].view(torch.int32).long() & 0xFFFFFFFF
    return x.index_put((rows, nodes), _residual(p.at(rows, nodes), q.at(rows, nodes), key).to(x.dtype))


def _residual(p: "GaussianMixture", q: "GaussianMixture", key: Tensor) -> Tensor:
    """Draws from the normalised (p - (1 - slack) q)+ at nodes `[n, 1]` with keys `[n, 2]`: `[n, dim]`."""
    found = torch.empty_like(p.means[:, 0, 0])
    waiting, block, tries = torch.arange(len(key), device=key.device), 0, TRIES
    while len(waiting):
        zero = torch.zeros_like(waiting)
        noise = PhiloxNoise(key[waiting], zero[:1, None], zero[:, None] + block)
        e = noise.exponential(tries * (p.numbers + 1)).unflatten(-1, (tries, -1))
        mine, draft = p.at(waiting, zero), q.at(waiting, zero)
        y = mine.drawn(e[..., 1:])
        spent = math.log1p(-p.slack) + draft.log_density(y) - mine.log_density(y)
        taken = (-e[..., 0] > spent.nan_to_num(nan=-torch.inf))[:, 0]  # a broken draft was no proposal
        hit, first = taken.any(-1), taken.int().argmax(-1)
        found[waiting[hit]] = y[hit, 0, first[hit]]
        waiting, block, tries = waiting[~hit], block + 1, min(2 * tries, MOST_TRIES)
    return found
