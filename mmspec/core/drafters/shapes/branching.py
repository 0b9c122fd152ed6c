"""`branching`: a fixed number of children per depth; one tree for all rows.

RSD-C (Jeon et al., arXiv 2402.14160); Sequoia (Chen et al., 2402.12374) samples the same way. Children are drawn
without replacement by Gumbel-top-k and are in the order of their draws; the distribution of each is q without its
earlier siblings, renormalised. The tree is known beforehand, so that masks are built once.
Exact under `recursive-rejection` and `match`.
Knob: `branching`: more children at a depth help where the draft model is unsure, and multiply the nodes below.
"""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical
from mmspec.core.drafters.shapes.shape import Frontier, Level
from mmspec.core.drafters.shapes.siblings import distribution_of, race
from mmspec.core.once import known


@dataclass(frozen=True)
class Branching:
    # Children of every node, by depth; its length bounds the number of levels
    branching: tuple[int, ...] = (3, 2, 1, 1, 1)

    offers = frozenset({"tree", "q"})
    needs = frozenset[str]()

    def __post_init__(self) -> None:
        if not self.branching or min(self.branching) < 1:
            raise ValueError(f"branching lists children per depth, each at least 1, got {self.branching}")

    @property
    def widest(self) -> int:
        return max(self.branching)

    def levels(self, k: int) -> int:
        return min(k, len(self.branching))

    def width(self, k: int) -> int:
        return sum(self._sizes(k))

    def fed(self, k: int) -> int:
        return sum(self._sizes(k)[:-1])

    def parents(self, k: int) -> tuple[int, ...] | None:
        return _parents(self.branching[:k])

    def level(self, frontier: Frontier, depth: int) -> Level:
        distribution, children = frontier.distribution, self.branching[depth - 1]
        assert isinstance(distribution, Categorical)
        best = race(frontier).topk(children, -1)  # [batch, m, children]
        node = torch.arange(best.indices[0].numel(), device=best.indices.device)[None]
        parent = node // children
        drawn_from = None
        if frontier.wants_distribution:
            drawn_from = distribution_of(distribution, parent, node % children, best.indices)
        score = (frontier.score + distribution.confidence()).repeat_interleave(children, 1)
        return Level(best.indices.flatten(1), parent, score, best.values.flatten(1) > 0, drawn_from)

    def choose(self, score: Tensor) -> Tensor | None:
        return None

    def _sizes(self, k: int) -> list[int]:
        return [prod(self.branching[:depth]) for depth in range(1, self.levels(k) + 1)]


@known
def _parents(branching: tuple[int, ...]) -> tuple[int, ...]:
    parents: list[int] = []
    level = [-1]
    for children in branching:
        new = [parent for parent in level for _ in range(children)]
        level = [len(parents) + i for i in range(len(new))]
        parents += new
    return tuple(parents)
