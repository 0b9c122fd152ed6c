"""`greedy`: the tree of a given size whose nodes are together the likeliest to be accepted, whatever its form.

DySpec (Xiong et al., arXiv 2410.11744), algorithm 1: a heap gives the candidate with the largest value, the product of
the probabilities along its path; it joins the tree, and its children and its next sibling become candidates. Values
never increase along a path, so the tree has the `nodes` largest values of all. Here, as in the paper's layered form
(§ 4.3), a level is expanded in one pass: of each level those nodes that are among the `nodes` best so far, since no
others can have a descendant among them. The result is the heap's, not an approximation by a threshold.
Scores are those of `rerank`; nodes are chosen by their own units, so that a rule must offer `rerank`, as `match` does.
The paper draws siblings at random and gives a node its value before the draw, which is exact under
`recursive-rejection`, too; that form is not built.
Knobs: `nodes` (the paper's budget: larger accepts more and costs more), `children` (most of one node), `spread`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.drafters.shapes.shape import Frontier, Level
from mmspec.core.drafters.shapes.siblings import best_nodes, likeliest


@dataclass(frozen=True)
class Greedy:
    """See the module.

    Attributes:
        nodes: Nodes that are verified.
        children: Most children of a node.
        spread: Temperature of the scores of sampled nodes.
    """

    nodes: int = 24
    children: int = 6
    spread: float = 0.75

    offers = frozenset({"tree"})
    needs = frozenset({"rerank"})

    def __post_init__(self) -> None:
        if min(self.children, self.nodes) < 1:
            raise ValueError("children and nodes must be at least 1")
        if not self.spread > 0:
            raise ValueError(f"spread must be positive, got {self.spread}")

    @property
    def widest(self) -> int:
        return self.children

    def levels(self, k: int) -> int:
        return k

    def width(self, k: int) -> int:
        return min(self.nodes, sum(self.children * expanded for expanded in self._expanded(k)))

    def fed(self, k: int) -> int:
        return sum(self._expanded(k)[1:])

    def parents(self, k: int) -> tuple[int, ...] | None:
        return None

    def level(self, frontier: Frontier, depth: int) -> Level:
        best, own = likeliest(frontier, self.children, self.spread)
        score = (frontier.score[..., None] + own).flatten(1)
        node = torch.arange(score.shape[1], device=score.device)[None]
        seen = score if frontier.carried is None else torch.cat([frontier.carried, score], 1)
        seen = seen.topk(min(self.nodes, seen.shape[1]), -1).values  # the best so far, in descending order
        most = min(self.nodes, score.shape[1])
        if score.device.type == "cpu":  # elsewhere, counting would be a host sync
            most = min(most, max(1, int((score >= seen[:, -1:]).sum(1).max())))
        kept = score.topk(most, -1).indices
        return Level(best.flatten(1), node // best.shape[-1], score, score > -torch.inf, frontier=kept, carried=seen)

    def choose(self, score: Tensor) -> Tensor | None:
        return best_nodes(score, self.nodes)

    def _expanded(self, k: int) -> list[int]:
        """Most nodes expanded at each level, beginning with the root."""
        return [min(self.nodes, self.children**depth) for depth in range(k)]
