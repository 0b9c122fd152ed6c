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


def likeliest(frontier: Frontier, children: int, spread: float) -> tuple[Tensor, Tensor]:
    """The best children of every node, and how likely each is the target's choice: `[batch, m, children]` each.

    Fewer where there are fewer units. If greedy, that is their log probability. With the target's own noise E it is
    log softmax(log(q / E) / spread), an estimate of how likely the target's race has the same winner.
    """
    values = race(frontier)
    most, best = values.topk(min(children, values.shape[-1]), -1)
    scores = most.log() if frontier.greedy else torch.log_softmax(values.log() / spread, -1).gather(-1, best)
    return best, scores.clamp(max=0)  # rounding must not let a child overtake its parent


def best_nodes(score: Tensor, nodes: int) -> Tensor:
    """The `nodes` best of all candidates' scores `[batch, node]`, which never increase along a path: ascending ids.

    The sort is stable: of equal scores the earlier node comes first, so that a child never displaces its parent.
    """
    return score.sort(dim=1, descending=True, stable=True).indices[:, :nodes].sort(1).values


def distribution_of(distribution: Categorical, parent: Tensor, rank: Tensor, children: Tensor) -> Categorical:
    """The distribution of each node: its parent's distribution without the earlier siblings, renormalised.

    `parent` is the index of a node's parent and `rank` how many siblings were drawn before it, `[batch, n]` or `[1,
    n]`; `children [batch, m, r]` are each parent's units in the order of their draws.
    """
    q, drawn = take_nodes(distribution.on(None), parent), take_nodes(children, parent)
    earlier = torch.arange(drawn.shape[-1], device=drawn.device) < rank[..., None]
    left = q.scatter(-1, drawn, torch.where(earlier, 0.0, q.gather(-1, drawn)))
    # Nothing is left if there are more siblings than units with mass; such nodes are not valid.
    return Categorical(left / left.sum(-1, keepdim=True).clamp(min=torch.finfo(left.dtype).tiny))
