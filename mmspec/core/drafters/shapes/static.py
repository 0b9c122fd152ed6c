"""`static`: a given tree (`mmspec.core.drafters.static_tree`), which all rows and all rounds share.

Masks and paths of the tree are made once. Children are drawn without replacement by Gumbel-top-k, as in `branching`.
Exact under `recursive-rejection` and `match`.
Knob: the tree. A smaller budget cuts its lower levels off.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical
from mmspec.core.drafters.shapes.shape import Frontier, Level
from mmspec.core.drafters.shapes.siblings import distribution_of, race
from mmspec.core.drafters.static_tree import levels_of
from mmspec.core.once import known
from mmspec.core.transfer import on_device


@dataclass(frozen=True)
class Static:
    tree: tuple[int, ...]  # parents of the drafted nodes, -1 for the root; levels follow one another
    ranks: tuple[int, ...]  # the rank of every node among its siblings, from 0 on

    offers = frozenset({"tree", "q"})
    needs = frozenset[str]()

    @property
    def widest(self) -> int:
        return 1 + max(self.ranks)

    def levels(self, k: int) -> int:
        return min(k, len(self.by_level))

    def width(self, k: int) -> int:
        return sum(len(level) for level in self.by_level[:k])

    def fed(self, k: int) -> int:
        return sum(len(level) for level in self.by_level[: self.levels(k) - 1])

    def parents(self, k: int) -> tuple[int, ...]:
        return self.tree[: self.width(k)]

    def level(self, frontier: Frontier, depth: int) -> Level:
        distribution = frontier.distribution
        assert isinstance(distribution, Categorical)
        parent, rank = _places(self, depth, frontier.score.device)
        best = race(frontier).topk(self.widest, -1)  # [batch, m, rank]
        units, values = (found[:, parent, rank] for found in (best.indices, best.values))
        drawn_from = (
            distribution_of(distribution, parent[None], rank[None], best.indices)
            if frontier.wants_distribution
            else None
        )
        score = (frontier.score + distribution.confidence())[:, parent]
        return Level(units, parent[None], score, values > 0, drawn_from)

    def choose(self, score: Tensor) -> Tensor | None:
        return None

    @cached_property
    def by_level(self) -> list[list[int]]:
        """The nodes of every level."""
        return levels_of(self.tree)


@known
def _places(shape: Static, depth: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """For the nodes at a depth: their parents' places in the level above, and their ranks."""
    above = shape.by_level[depth - 2] if depth > 1 else [-1]
    nodes = shape.by_level[depth - 1]
    parents = [above.index(shape.tree[node]) for node in nodes]
    return on_device(parents, device), on_device([shape.ranks[node] for node in nodes], device)
