"""`comb`: a chain whose every node has siblings, more of them where the drafter is less sure.

SWIFT (Xia et al., arXiv 2410.06916), confidence-aware candidates: beside each unit of a drafted chain stand the
likeliest other units, as many as the drafter's confidence there says. Only the chain is continued. Of all candidates
the `nodes` best by cumulative score are verified, which bounds a pass; the published code verifies all.
Scores, and what rules have to offer, are as in `rerank`.
Knobs: `candidates` and `nodes`: more are accepted, and each costs in the target's pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.drafters.shapes.shape import Frontier, Level
from mmspec.core.drafters.shapes.siblings import best_nodes, likeliest

CANDIDATES = ((0.95, 3), (0.8, 5), (0.5, 8), (0.0, 10))
"""Published numbers of candidates of a depth, the chain's own node included, by the least confidence they are for."""


@dataclass(frozen=True)
class Comb:
    """See the module."""

    nodes: int = 24  # nodes that are verified
    # Pairs of a confidence and a number, from the highest confidence to 0
    candidates: Sequence[tuple[float, int]] = CANDIDATES
    spread: float = 0.75  # as in `rerank`

    offers = frozenset({"tree"})
    needs = frozenset({"rerank"})

    @property
    def widest(self) -> int:
        return max(number for _, number in self.candidates)

    def levels(self, k: int) -> int:
        return min(k, self.nodes)

    def width(self, k: int) -> int:
        return min(self.nodes, self.widest * k)

    def fed(self, k: int) -> int:
        return max(0, self.levels(k) - 1)

    def parents(self, k: int) -> tuple[int, ...] | None:
        return None

    def level(self, frontier: Frontier, depth: int) -> Level:
        best, own = (each[:, 0] for each in likeliest(frontier, self.widest, self.spread))  # [batch, candidate]
        confidence = frontier.distribution.confidence().exp()  # [batch, 1]
        rank = torch.arange(best.shape[1], device=best.device)
        score = torch.where(rank < self._number(confidence), frontier.score + own, -torch.inf)
        parent, chain = torch.zeros_like(best[:1]), torch.zeros_like(best[:1, :1])
        return Level(best, parent, score, score > -torch.inf, frontier=chain, carried=confidence)

    def choose(self, score: Tensor) -> Tensor | None:
        return best_nodes(score, self.nodes)

    def _number(self, confidence: Tensor) -> Tensor:
        """Candidates at nodes where the drafter is so sure: `[batch, 1]`."""
        number = torch.zeros_like(confidence, dtype=torch.int64)
        for least, candidates in self.candidates:
            number = torch.where((number == 0) & (confidence >= least), candidates, number)
        return number
