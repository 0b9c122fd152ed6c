"""`chain`: one child per node.

Speculative sampling (Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318). A node's score is the sum of the
logs of each distribution's largest probability, known before the draw.
Exact under every rule that takes chains. No knobs.
"""

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical
from mmspec.core.drafters.shapes.shape import Frontier, Level


class Chain:
    """See the module. The only shape for distributions that are not categorical."""

    offers = frozenset({"chain", "q"})
    needs: frozenset[str] = frozenset()
    widest = 1

    def levels(self, k: int) -> int:
        return k

    def width(self, k: int) -> int:
        return k

    def fed(self, k: int) -> int:
        return max(0, k - 1)

    def parents(self, k: int) -> tuple[int, ...] | None:
        return tuple(range(-1, k - 1))

    def level(self, frontier: Frontier, depth: int) -> Level:
        distribution = frontier.distribution
        if frontier.greedy and isinstance(distribution, Categorical):
            units = distribution.on(None).argmax(-1)
        else:
            draws = distribution.draw(frontier.noise)
            units, distribution = distribution.units(draws), distribution.with_draws(draws)
        score = frontier.score + distribution.confidence()
        parent = torch.zeros(1, 1, dtype=torch.int64, device=score.device)
        valid = torch.ones_like(score, dtype=torch.bool)
        return Level(units, parent, score, valid, distribution if frontier.wants_distribution else None)

    def choose(self, score: Tensor) -> Tensor | None:
        return None
