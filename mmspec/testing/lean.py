"""Does a rule lean towards its drafts? A test that sees a wrong acceptance with far fewer rows than a joint's χ².

A rule that accepts a little too often emits too many units that the draft's distribution q likes better than the
target's p does. So the test asks of the first unit of every round whether it lies where q > p. Given the past and q,
that unit follows p: its probability to lie there is p's mass there, whatever the drafter. The shift of one mean over
all rounds shows earlier than a shift spread over the hundreds of cells of a joint, or over continuous units.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.capabilities import TargetAware, TargetWrapping
from mmspec.core.distributions import Categorical, Distribution, Gaussian, Mixed, take_nodes
from mmspec.core.noise import DraftNoise, Round
from mmspec.core.protocols import Target
from mmspec.core.rules import Rule
from mmspec.core.types import Draft, Scores, Verdict
from mmspec.testing.statistics import mean_sees


@dataclass
class Lean:
    """Counts of first units that lie where q > p."""

    excess: float = 0.0  # their number, minus the number that p expects
    variance: float = 0.0  # the variance of that number under p
    count: int = 0  # the number of rounds counted

    @property
    def p_value(self) -> float:
        """Two-sided p-value of no lean; 1 if no draft had a distribution that the test knows."""
        return math.erfc(abs(self.excess) / math.sqrt(2 * self.variance)) if self.variance else 1.0

    @property
    def sees(self) -> float:
        """The smallest excess, as a share of `count` and of either sign, that the test sees."""
        return mean_sees(self.variance, self.count)


class Around:
    """A rule that passes every call on to another rule."""

    def __init__(self, rule: Rule) -> None:
        self.rule, self.exactness, self.needs, self.offers = rule, rule.exactness, rule.needs, rule.offers

    def bind(self, target: Target) -> None:
        if isinstance(self.rule, TargetAware):
            self.rule.bind(target)

    def wrap(self, target: Target) -> Target:
        return self.rule.wrap(target) if isinstance(self.rule, TargetWrapping) else target

    def draft_noise(self, round: Round) -> DraftNoise:
        return self.rule.draft_noise(round)


class Leaning(Around):
    """Counts where units come out."""

    def __init__(self, rule: Rule) -> None:
        super().__init__(rule)
        self.lean = Lean()

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        verdict = self.rule.accept(draft, scores, round)
        if draft.nodes > 1 and draft.distribution is not None:
            self._count(draft, scores.distribution, verdict)
        return verdict

    def _count(self, draft: Draft, distribution: Distribution, verdict: Verdict) -> None:
        root = torch.zeros(1, 1, dtype=torch.int64)
        q: Any = draft.distribution
        drawn = draft.valid[:, 1]  # node 1 is a child of the root, and was drawn first
        if isinstance(q, Mixed):
            q, drawn = q.distribution, drawn & q.random[:, 0]
        child = take_nodes(draft.units, verdict.path[:, :1].clamp(min=0))[:, 0]
        accepted = (verdict.length > 0).reshape(-1, *(1,) * (child.dim() - 1))
        first = torch.where(accepted, child, verdict.unit)[:, None]
        region = _where_q_is_larger(distribution.take(root), q.take(root), first)
        if region is None:
            return
        inside, mass = region[0][drawn].double(), region[1][drawn].double()
        self.lean.excess += float((inside - mass).sum())
        self.lean.variance += float((mass * (1 - mass)).sum())
        self.lean.count += int(drawn.sum())


def _where_q_is_larger(p: Any, q: Any, unit: Tensor) -> tuple[Tensor, Tensor] | None:
    """True if `unit [batch, 1, *unit]` lies where q > p, and p's mass there: `[batch]` each.

    None if p and q are neither both categorical nor both Gaussian.
    """
    if isinstance(p, Categorical) and isinstance(q, Categorical):
        probs = p.on(None)
        where = q.on(None) > probs
        return where.gather(-1, unit[..., None])[:, 0, 0], (probs * where).sum(-1)[:, 0]
    if isinstance(p, Gaussian) and isinstance(q, Gaussian):
        apart = ((q.mean - p.mean) / p.sigma).flatten(1)
        along = (((unit - p.mean) / p.sigma).flatten(1) * apart).sum(1)
        squared = (apart * apart).sum(1)
        mass = torch.where(squared > 0, torch.special.ndtr(-squared.sqrt() / 2), 0.0)
        return along > squared / 2, mass
    return None
