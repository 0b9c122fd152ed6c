"""Does a rule lean towards its drafts? What acceptance tests get wrong, seen far earlier than in a joint.

A rule that accepts a little too often emits too many units that the draft likes better than the target does. So of
every round's first unit one asks whether it lies where q > p. Given what is known, and q, that unit follows p: the
share of such units is p's mass there, whatever the drafter. One number, over all rounds, sees a shift of its mean that
is lost in the hundreds of cells of a joint, and on continuous units in the noise of their distribution functions.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec.core.capabilities import TargetAware, TargetWrapping
from mmspec.core.distributions import Categorical, Distribution, Gaussian, Mixed, take_nodes
from mmspec.core.noise import DraftNoise, Round
from mmspec.core.protocols import Target
from mmspec.core.rules import Rule
from mmspec.core.types import Draft, Scores, Verdict
from mmspec.testing.power import mean_sees


@dataclass
class Lean:
    """Units that came out where q > p.

    Attributes:
        excess: How many more than p expects.
        variance: Of that number.
        count: Units that were looked at.
    """

    excess: float = 0.0
    variance: float = 0.0
    count: int = 0

    @property
    def p_value(self) -> float:
        """Of no lean, two-sided; 1 where nothing was drawn from a distribution that the test knows."""
        return math.erfc(abs(self.excess) / math.sqrt(2 * self.variance)) if self.variance else 1.0

    @property
    def sees(self) -> float:
        """The smallest share of units too many, or too few, that the test sees."""
        return mean_sees(self.variance, self.count)


@dataclass
class Leaning:
    """Passes calls on to a rule, and counts.

    Attributes:
        rule: The rule.
        lean: What was counted.
    """

    rule: Rule
    lean: Lean = field(default_factory=Lean)

    def __post_init__(self) -> None:
        self.exactness, self.needs, self.offers = self.rule.exactness, self.rule.needs, self.rule.offers

    def bind(self, target: Target) -> None:
        if isinstance(self.rule, TargetAware):
            self.rule.bind(target)

    def wrap(self, target: Target) -> Target:
        return self.rule.wrap(target) if isinstance(self.rule, TargetWrapping) else target

    def draft_noise(self, round: Round) -> DraftNoise:
        return self.rule.draft_noise(round)

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        verdict = self.rule.accept(draft, scores, round)
        if draft.nodes > 1 and draft.distribution is not None:
            self._count(draft, scores.distribution, verdict)
        return verdict

    def _count(self, draft: Draft, distribution: Distribution, verdict: Verdict) -> None:
        root = torch.zeros(1, 1, dtype=torch.int64)
        q: Any = draft.distribution
        drawn = draft.valid[:, 1]  # node 1 hangs on the root, and was drawn first
        if isinstance(q, Mixed):
            q, drawn = q.distribution, drawn & q.random[:, 0]
        child = take_nodes(draft.units, verdict.path[:, :1].clamp(min=0))[:, 0]
        accepted = (verdict.length > 0).reshape(-1, *(1,) * (child.dim() - 1))
        found = _beyond(distribution.take(root), q.take(root), torch.where(accepted, child, verdict.unit)[:, None])
        if found is None:
            return
        hit, mass = found[0][drawn].double(), found[1][drawn].double()
        self.lean.excess += float((hit - mass).sum())
        self.lean.variance += float((mass * (1 - mass)).sum())
        self.lean.count += int(drawn.sum())


def _beyond(p: Any, q: Any, unit: Tensor) -> tuple[Tensor, Tensor] | None:
    """Whether `unit [batch, 1, *unit]` lies where q > p, and p's mass there: `[batch]` each; None of other families."""
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
