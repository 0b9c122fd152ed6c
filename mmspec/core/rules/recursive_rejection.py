"""`recursive-rejection`: trees whose siblings were sampled, with or without replacement.

SpecInfer (arXiv 2305.09781), SpecTr (2310.15141), Sequoia (2402.12374), RSD (2402.14160): siblings are tried in the
order in which they were drawn, starting with r = p; child k is accepted with probability min(1, r(x) / q_k(x)), else r
becomes the normalised (r - q_k)+; if no child is accepted, the unit is drawn from the last r. `draft.distribution` is
the distribution that each sibling was really drawn from: without replacement, q without its earlier siblings,
renormalised.
Guarantee: `lossless`. The walk: `siblings.py`.
"""

from dataclasses import dataclass

from torch import Tensor

from mmspec.core.distributions import Categorical, Distribution, PointMass, dense
from mmspec.core.kernels.fused import siblings_tried
from mmspec.core.manifest import RECURSIVE_REJECTION
from mmspec.core.noise import Round, SpreadNoise, Substream
from mmspec.core.rules.rule import DraftsAfresh, walk
from mmspec.core.rules.siblings import Tried, siblings_walked
from mmspec.core.types import Draft, Scores, Verdict


class RecursiveRejection(DraftsAfresh):
    """See the module. No knobs. `verdict.drawn` is meaningful on the accepted path only."""

    exactness: str = RECURSIVE_REJECTION.exactness
    needs, offers = RECURSIVE_REJECTION.needs, RECURSIVE_REJECTION.offers

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        noise, distribution = round.fresh(draft.nodes), scores.distribution
        if draft.nodes == 1 or draft.distribution is None or isinstance(distribution, PointMass):
            # One draw per depth: equal siblings then agree, and the walk cannot pick the better of two draws.
            index = draft.index
            shared = noise if index.is_chain else SpreadNoise(round.fresh(index.deepest + 1), index.depth)
            # In the substream of residuals, so that a row's draw does not depend on whether another row has a draft.
            return walk(draft, distribution.draw(shared.substream(Substream.RESIDUAL)))
        fused = siblings_tried(draft, distribution, round)
        if fused is not None:  # the same in one launch
            return fused
        assert isinstance(distribution, Categorical)
        return siblings_walked(draft, distribution, round, _Trial(draft.distribution, distribution.size))


@dataclass(frozen=True, eq=False)
class _Trial:
    """A child x is kept with probability min(1, r(x) / q(x)), and leaves (r - q)+."""

    drawn: Distribution  # the distribution that every drafted unit was drawn from
    size: int  # units of the vocabulary

    def __call__(self, rest: Tensor, x: Tensor, child: Tensor) -> Tried:
        q = dense(self.drawn.take((child - 1).clamp(min=0)), x, self.size)
        p_x, q_x = (values.gather(-1, x[..., None])[..., 0] for values in (rest, q))
        return Tried(p_x, q_x, (rest - q).clamp(min=0))
