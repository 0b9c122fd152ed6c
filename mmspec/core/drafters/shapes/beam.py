"""`beam`: stochastic beam search, which samples sequences without replacement.

RSD-S (Jeon et al., arXiv 2402.14160) on stochastic beam search (Kool et al., 1903.06059). A node has φ, the log
probability of its path, and a perturbed value G; a child has G' = φ' + Gumbel, conditioned on its parent's value:
G~ = -log(e^-G - e^-Z + e^-G') with Z the largest G' among its siblings. The `beams` largest G~ of a level are kept, in
descending order. The kept children of a node are a prefix of the order in which they were drawn, and the cut does not
depend on the next child's unit, so that they are sampled without replacement.
Exact under `recursive-rejection` and `match`. If greedy, this is plain beam search.
Knob: `beams`: nodes per level; 1 is a chain.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical, take_nodes
from mmspec.core.drafters.shapes.shape import Frontier, Level
from mmspec.core.drafters.shapes.siblings import distribution_of, race


@dataclass(frozen=True)
class Beam:
    beams: int = 4  # nodes per level

    offers = frozenset({"tree", "q"})
    needs = frozenset[str]()

    def __post_init__(self) -> None:
        if self.beams < 1:
            raise ValueError(f"a beam keeps at least 1 node per level, got {self.beams}")

    @property
    def widest(self) -> int:
        return self.beams

    def levels(self, k: int) -> int:
        return k

    def width(self, k: int) -> int:
        return self.beams * k

    def fed(self, k: int) -> int:
        return self.beams * max(0, k - 1)

    def parents(self, k: int) -> tuple[int, ...] | None:
        return None

    def level(self, frontier: Frontier, depth: int) -> Level:
        distribution, most = frontier.distribution, self.beams
        assert isinstance(distribution, Categorical)
        at_root = torch.zeros_like(frontier.score)
        path, above = frontier.carried or (at_root, at_root)  # φ and G of the frontier: [batch, m]
        best = race(frontier).topk(most, -1)  # no node keeps more children than a level has nodes
        own = path[..., None] + distribution.on(None).gather(-1, best.indices).log()
        drawn = path[..., None] + best.values.log()  # G', descending
        value = (own if frontier.greedy else conditioned(drawn, above)).flatten(1)
        kept = value.topk(most, -1)
        parent, rank = kept.indices // most, kept.indices % most
        drawn_from = distribution_of(distribution, parent, rank, best.indices) if frontier.wants_distribution else None
        return Level(
            best.indices.flatten(1).gather(1, kept.indices),
            parent,
            take_nodes(frontier.score + distribution.confidence(), parent),
            kept.values > -torch.inf,
            drawn_from,
            carried=(own.flatten(1).gather(1, kept.indices), kept.values),
        )

    def choose(self, score: Tensor) -> Tensor | None:
        return None


def conditioned(drawn: Tensor, above: Tensor) -> Tensor:
    """G~: children's values `drawn [batch, m, r]`, largest first, conditioned on their maximum `above [batch, m]`.

    -inf if a child, or its parent, cannot be drawn.
    """
    bound = above[..., None]
    below = (drawn - drawn[..., :1]).clamp(max=0)
    # log(1 - e^below), computed by the form that is accurate on each side of log 2.
    gap = torch.where(below > -0.693, torch.log(-torch.expm1(below)), torch.log1p(-torch.exp(below)))
    v = bound - drawn + gap
    value = bound - v.clamp(min=0) - torch.log1p(torch.exp(-v.abs()))
    return torch.where((bound > -torch.inf) & (drawn > -torch.inf), value, -torch.inf)
