"""The shape of a tree that was chosen before anything is known of the text: all rows and all rounds share it.

Masks and paths of one tree are made once. Children are drawn without replacement by Gumbel-top-k, as in `branching`.
Exact under `recursive-rejection` and `match`.
Knob: the tree. A smaller budget cuts its lower levels off.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical
from mmspec.core.drafters.shapes.shape import Frontier, Level
from mmspec.core.drafters.shapes.siblings import distribution_of, race


@dataclass(frozen=True)
class StaticShape:
    """See the module.

    Attributes:
        tree: Parents of the drafted nodes, -1 for the root; levels follow one another.
        ranks: Which child of its parent every node is, from 0 on.
    """

    tree: tuple[int, ...]
    ranks: tuple[int, ...]

    offers = frozenset({"tree", "q"})
    needs = frozenset[str]()

    @property
    def widest(self) -> int:
        return 1 + max(self.ranks)

    def levels(self, k: int) -> int:
        return min(k, len(self._by_depth))

    def width(self, k: int) -> int:
        return sum(len(level) for level in self._by_depth[:k])

    def fed(self, k: int) -> int:
        return sum(len(level) for level in self._by_depth[: self.levels(k) - 1])

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
    def _by_depth(self) -> list[list[int]]:
        """Nodes of every level."""
        levels: list[list[int]] = []
        depths = {-1: -1}
        for node, parent in enumerate(self.tree):
            depths[node] = depths[parent] + 1
            if depths[node] == len(levels):
                levels.append([])
            levels[depths[node]].append(node)
        return levels


@lru_cache(maxsize=64)
def _places(shape: StaticShape, depth: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Of the nodes at a depth: their parents' places in the level above, and their ranks."""
    above = shape._by_depth[depth - 2] if depth > 1 else [-1]
    nodes = shape._by_depth[depth - 1]
    parents = [above.index(shape.tree[node]) for node in nodes]
    return torch.tensor(parents, device=device), torch.tensor([shape.ranks[node] for node in nodes], device=device)
