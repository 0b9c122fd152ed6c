"""`rerank`: expand the most promising nodes of each level, then verify the best of all candidates.

EAGLE-2 (Li et al., arXiv 2406.16858): every frontier node gets `children` children, the `frontier` best nodes of a
level by cumulative score are expanded next, and the `nodes` best of all candidates are verified. Scores never increase
along a path, so that the chosen nodes are a tree. If greedy, a child adds its log probability. With the target's own
noise E, as under `match`, children are the top of the race q / E, and a child adds log softmax(log(q / E) / spread), an
estimate of how likely the target's race has the same winner.
Without a number of nodes per level (`frontier=None`) the tree is DySpec's (Xiong et al., arXiv 2410.11744) with values
that a node's own unit decides: a heap takes the candidate with the largest product of probabilities again and again, so
that the `nodes` largest of all are verified, whatever form they make. With values that are known before a unit is
drawn, as in the paper, DySpec's tree is the shape `heap`.
Nodes are chosen by their own units, which biases every rule that uses q (we measured a mean TV of 0.15 to 0.2); so
drafts are point masses, and the rule must offer `rerank`, as `match` does.
Knobs: `frontier`, `children` and `nodes`: larger finds more and costs more, in the draft model and in the target; a
smaller `spread` trusts the winner of the draft model's race more: deeper, narrower trees.
"""

from dataclasses import dataclass

import torch

from mmspec.core.drafters.shapes.best_first import BestFirst, best_so_far, promising
from mmspec.core.drafters.shapes.shape import Frontier, Level
from mmspec.core.drafters.shapes.siblings import likeliest


@dataclass(frozen=True)
class Rerank(BestFirst):
    frontier: int | None = 6  # nodes expanded per level; None: those that are among the `nodes` best so far
    children: int = 6  # children of each of them
    nodes: int = 24  # nodes that are verified
    spread: float = 0.75  # temperature of the scores of sampled nodes

    offers = frozenset({"tree"})
    needs = frozenset({"rerank"})

    def __post_init__(self) -> None:
        if min(self._most, self.children, self.nodes) < 1:
            raise ValueError("frontier, children and nodes must be at least 1")
        if not self.spread > 0:
            raise ValueError(f"spread must be positive, got {self.spread}")

    def level(self, frontier: Frontier, depth: int) -> Level:
        best, own = likeliest(frontier, self.children, self.spread)
        score = (frontier.score[..., None] + own).flatten(1)
        node = torch.arange(score.shape[1], device=score.device)[None]
        most, seen = min(self._most, score.shape[1]), None
        if self.frontier is None:
            seen = best_so_far(frontier.carried, score, self.nodes)
            most = promising(score, seen, self.nodes)
        kept = score.topk(most, -1).indices
        return Level(best.flatten(1), node // best.shape[-1], score, score > -torch.inf, frontier=kept, carried=seen)

    @property
    def _most(self) -> int:
        return self.nodes if self.frontier is None else self.frontier
