"""Two couplings of Gaussian mixtures: y ~ p, given x ~ q. Both are exact.

`maximal`: keep x with probability min(1 - slack, p(x) / q(x)); else draw from the residual, the normalised
(p - (1 - slack) q)+, by rejection sampling: a proposal y ~ p is taken with probability (1 - (1 - slack) q(y) / p(y))+
(Thorisson, 2000; Gerber and Lee, 2020). P(y = x) >= (1 - slack)(1 - TV(p, q)). Where p and q are almost equal, x is
rarely refused, but then almost all proposals fall outside the residual: the slack bounds the expected number of
proposals by 1 / slack. Proposals are made in blocks, each twice as long as the one before, with one host read a block;
they are for refused nodes only, except that off the CPU the first block is for all nodes. There is no cut-off: the
loop runs until every node has its draw.

`common`: the component of x is drawn from its posterior and coupled maximally with the target's component. If the two
are the same component, x is reflected between its two Gaussians at q's scale; where p's scale differs, the result is
then coupled by `maximal` with the Gaussian of p's scale (a chain of couplings is a coupling). If they differ, y takes
x's standardised noise into the other component.
P(y = x) = sum_k min(w_p, w_q)(1 - TV_k) where scales are equal. A refused x leaves a y nearby.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from mmspec.core.distributions.distribution import where_nodes
from mmspec.core.distributions.mixture_density import MixtureDensity
from mmspec.core.distributions.reflection import reflect
from mmspec.core.noise import Noise, Substream
from mmspec.core.philox import PhiloxNoise

FIRST_BLOCK, LARGEST_BLOCK = 8, 1024
"""Proposals of the first block, and most proposals of a block."""


def maximal(p: MixtureDensity, q: MixtureDensity, x: Tensor, noise: Noise, slack: float) -> Tensor:
    """y ~ p, given x ~ q `[batch, node, dim]`: by the ratio of the densities."""
    log_coin = -noise.substream(Substream.COIN).exponential(1)[..., 0]
    return _by_density(p, q, x, log_coin, noise.substream(Substream.RESIDUAL).exponential(2), p.finite(), slack)


def common(p: MixtureDensity, q: MixtureDensity, x: Tensor, noise: Noise, slack: float) -> Tensor:
    """y ~ p, given x ~ q `[batch, node, dim]`: component by component."""
    size = p.weights.shape[-1]
    log_coins = -noise.substream(Substream.COIN).exponential(3)
    race = noise.substream(Substream.RESIDUAL).exponential(2 * size + 2)
    own = (torch.softmax(q.log_parts(x[:, :, None])[:, :, 0], -1) / race[..., :size]).argmax(-1, keepdim=True)
    residual = (p.weights - q.weights).clamp(min=0)
    residual = torch.where(residual.sum(-1, keepdim=True) > 0, residual, p.weights)
    other = (residual / race[..., size : 2 * size]).argmax(-1, keepdim=True)
    kept = log_coins[..., :1] < p.weights.gather(-1, own).log() - q.weights.gather(-1, own).log()
    component = torch.where(kept, own, other)
    (mean, sigma), (mean_q, sigma_q) = ((m[:, :, 0], s[:, :, 0]) for m, s in (p.part(component), q.part(own)))
    reflected = reflect(x, mean_q, mean, sigma_q, log_coins[..., 1])
    rescaled = kept[..., 0] & (sigma != sigma_q).any(-1) & p.finite()
    at_p, at_q = MixtureDensity.single(mean, sigma), MixtureDensity.single(mean, sigma_q)
    near = _by_density(at_p, at_q, reflected, log_coins[..., 2], race[..., 2 * size :], rescaled, slack)
    return where_nodes(kept[..., 0], near, mean + sigma * ((x - mean_q) / sigma_q))


COUPLINGS: Mapping[str, Callable[[MixtureDensity, MixtureDensity, Tensor, Noise, float], Tensor]] = {
    "common": common,
    "maximal": maximal,
}


def _by_density(
    p: MixtureDensity, q: MixtureDensity, x: Tensor, log_coin: Tensor, seeds: Tensor, nodes: Tensor, slack: float
) -> Tensor:
    """`maximal` at some `nodes [batch, node]` bool, x `[batch, node, dim]` at all others.

    `log_coin [batch, node]` is the log of a uniform; `seeds [batch, node, 2]` are exponentials, which key the noise of
    the residual's proposals.
    """
    at = x[:, :, None]
    log_ratio = (p.log_density(at) - q.log_density(at))[..., 0].clamp(max=math.log1p(-slack))
    refused = nodes & ~(log_coin < log_ratio)
    # Every node has a key of its own, so that a row's draw does not depend on which other rows were refused.
    key = seeds.view(torch.int32).long() & 0xFFFFFFFF
    return _with_residual(p, q, x, refused, key, slack)


def _with_residual(
    p: MixtureDensity, q: MixtureDensity, x: Tensor, refused: Tensor, key: Tensor, slack: float
) -> Tensor:
    """x, and where `refused [batch, node]` draws from the normalised (p - (1 - slack) q)+; keys `[batch, node, 2]`."""
    result, refused, key = x.flatten(0, 1).clone(), refused.flatten(), key.flatten(0, 1)
    # Off the CPU, finding the refused nodes is a wait; proposals for all nodes cost less.
    waiting = refused.nonzero()[:, 0] if x.device.type == "cpu" else torch.arange(len(key), device=x.device)
    block, size = 0, FIRST_BLOCK
    while len(waiting):
        zero = torch.zeros_like(waiting)
        noise = PhiloxNoise(key[waiting], zero[:1, None], zero[:, None] + block)
        exponentials = noise.exponential(size * (p.numbers + 1)).unflatten(-1, (size, -1))
        row, node = waiting // x.shape[1], waiting % x.shape[1]
        target, draft = p.at(row, node), q.at(row, node)
        y = target.drawn(exponentials[..., 1:])
        log_spent = math.log1p(-slack) + draft.log_density(y) - target.log_density(y)
        # A draft whose density is NaN takes nothing away from p.
        taken = (-exponentials[..., 0] > log_spent.nan_to_num(nan=-torch.inf))[:, 0]
        hit, wanted = taken.any(-1), refused[waiting]
        first = y[:, 0].gather(1, taken.int().argmax(-1)[:, None, None].expand(-1, 1, y.shape[-1]))[:, 0]
        result[waiting] = torch.where((hit & wanted)[:, None], first.to(x.dtype), result[waiting])
        waiting, block, size = waiting[wanted & ~hit], block + 1, min(2 * size, LARGEST_BLOCK)
    return result.view_as(x)
