"""`chain`: one child per node.

Speculative sampling (Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318). A node's score is the sum of the
logs of each distribution's largest probability, known before the draw.
With `sure`, a row's chain ends before the first unit whose distribution has no probability as large as that: the
fall-back policy of BiLD (Kim et al., arXiv 2302.07863). A draft model that has a guess of its own whether the target
accepts the next unit says so in place of that probability (`Frontier.auxiliary`). It is decided before the draw.
Exact under every rule that takes chains.
Knob: `sure` (higher ends chains earlier).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical
from mmspec.core.drafters.shapes.shape import Frontier, Level


@dataclass(frozen=True)
class Chain:
    """See the module. The only shape for distributions that are not categorical."""

    sure: float = 0.0  # least value of the largest probability, or of the guess, at which a unit is still drafted

    offers = frozenset({"chain", "q"})
    needs = frozenset[str]()
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
        confidence = distribution.confidence()
        score = frontier.score + confidence
        parent = torch.zeros(1, 1, dtype=torch.int64, device=score.device)
        valid = torch.ones_like(score, dtype=torch.bool)
        if self.sure:
            valid = (confidence.exp() if frontier.auxiliary is None else frontier.auxiliary) >= self.sure
            valid = valid if frontier.carried is None else valid & frontier.carried
        kept = distribution if frontier.wants_distribution else None
        return Level(units, parent, score, valid, kept, carried=valid)

    @property
    def ends(self) -> bool:
        return self.sure > 0

    def ended(self, level: Level) -> bool:
        return not bool(level.valid.any())

    def choose(self, score: Tensor) -> Tensor | None:
        return None
