"""Siblings: the top k of an exponential race, which is sampling without replacement.

Gumbel-top-k (Kool et al., arXiv 1903.06059): log(q / E) is log q plus Gumbel noise; its top k, in descending order, are
distributed like k successive draws, each from q without the earlier ones, renormalised.
"""

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical, take_nodes
from mmspec.core.drafters.shapes.shape import Frontier


def race(frontier: Frontier) -> Tensor:
    """A value for every unit, `[batch, m, vocab]`; the largest are the children, and 0 cannot be drawn."""
    assert isinstance(frontier.distribution, Categorical)
    return frontier.distribution.on(None) if frontier.greedy else frontier.distribution.race(frontier.noise)


def distribution_of(distribution: Categorical, parent: Tensor, rank: Tensor, children: Tensor) -> Categorical:
    """What each node was drawn from: its parent's distribution without the earlier siblings, renormalised.

    Args:
        distribution: `[batch, m]`, dense.
        parent: Index of each node's parent, `[batch, n]` or `[1, n]`.
        rank: Number of siblings that were drawn before the node, `[batch, n]` or `[1, n]`.
        children: The children's units of each parent in the order of their draws, `[batch, m, r]`.
    """
    q, drawn = take_nodes(distribution.on(None), parent), take_nodes(children, parent)
    earlier = torch.arange(drawn.shape[-1], device=drawn.device) < rank[..., None]
    left = q.scatter(-1, drawn, torch.where(earlier, 0.0, q.gather(-1, drawn)))
    # Nothing is left if there are more siblings than units with mass; such nodes are not valid.
    return Categorical(left / left.sum(-1, keepdim=True).clamp(min=torch.finfo(left.dtype).tiny))
