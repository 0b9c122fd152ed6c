"""`heap`: the slots that verification most likely reaches, each valued before its unit is drawn.

DySpec (Xiong et al., arXiv 2410.11744), whose steps are a reconstruction, since the paper could not be read here. A
slot is a place for one more child of a node; the first one at the root has value 1. Drawing y from R, which is q
without the earlier siblings, renormalised, turns a slot of value v into a node and two more slots: v (1 - R(y)) is the
value of the next sibling's, and v R(y) of y's first child. The slot with the largest value is drawn next, until there
are `nodes`. Of a node whose first slot has value V, slot j has value V (1 - Σ_{i<j} q(y_i)), and the first slot of its
child j has V q(y_j). A new slot is never worth more than the one that it came from; so drawing level by level, and
keeping the `nodes` best slots, gives the same tree. A node gets children if its first slot is among the best so far.
A slot is kept for a value that its own draw does not change, so that the units keep their distribution.
Exact under `recursive-rejection` and `match`. If greedy, children are the likeliest units, valued likewise.
Knobs: `children`: most siblings; `nodes`: nodes that are verified.
"""

from dataclasses import dataclass

import torch

from mmspec.core.distributions import Categorical
from mmspec.core.drafters.shapes.best_first import BestFirst, best_so_far, promising
from mmspec.core.drafters.shapes.shape import Frontier, Level
from mmspec.core.drafters.shapes.siblings import distribution_of, race


@dataclass(frozen=True)
class Heap(BestFirst):
    children: int = 6  # most children of a node
    nodes: int = 24  # nodes that are verified

    offers = frozenset({"tree", "q"})
    needs = frozenset[str]()

    def __post_init__(self) -> None:
        if min(self.children, self.nodes) < 1:
            raise ValueError("children and nodes must be at least 1")

    def level(self, frontier: Frontier, depth: int) -> Level:
        distribution = frontier.distribution
        assert isinstance(distribution, Categorical)
        # V at the frontier, [batch, m], and the best slots so far, both as logarithms.
        first, seen = frontier.carried or (frontier.score, None)
        best = race(frontier).topk(min(self.children, distribution.size), -1)
        q = distribution.on(None).gather(-1, best.indices)  # [batch, m, children]
        slot = (first[..., None] + (1 - (q.cumsum(-1) - q)).clamp(min=0).log()).flatten(1)
        below = torch.minimum((first[..., None] + q.log()).flatten(1), slot)  # rounding must not let it overtake
        seen = best_so_far(seen, slot, self.nodes)
        kept = below.topk(promising(below, seen, self.nodes), -1).indices
        node = torch.arange(slot.shape[1], device=slot.device)[None]
        parent, rank = node // best.indices.shape[-1], node % best.indices.shape[-1]
        drawn_from = distribution_of(distribution, parent, rank, best.indices) if frontier.wants_distribution else None
        valid = (best.values.flatten(1) > 0) & (slot > -torch.inf)
        carried = below.gather(1, kept), seen
        return Level(best.indices.flatten(1), parent, slot, valid, drawn_from, kept, carried)
