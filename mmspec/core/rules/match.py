"""`match`: same seed, same output, only faster.

At every node one y ~ p is drawn with noise that is addressed by position, and the walk goes to the child that equals y.
The output equals plain decoding's with the same seed, whatever the drafter, the draft length, the tree or the batch:
Gumbel sharing (arXiv 2408.07978) with an exponential race. Acceptance of a sampled draft that shares the noise is at
least (1 - TV) / (1 + TV); for a point mass x it is p(x).
Guarantee: `invariant`. Needs discrete units; drafters may choose, drop and reorder siblings for any reason.
"""

from mmspec.core.kernels.fused import drawn_and_walked
from mmspec.core.manifest import MATCH
from mmspec.core.noise import DraftNoise, Round
from mmspec.core.rules.rule import walk
from mmspec.core.types import Draft, Scores, Verdict


class Match:
    """See the module. No knobs."""

    exactness: str = MATCH.exactness
    needs, offers = MATCH.needs, MATCH.offers

    def draft_noise(self, round: Round) -> DraftNoise:
        return DraftNoise(round, shared=True)

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        fused = drawn_and_walked(draft, scores.distribution, round)
        if fused is not None:  # the same in two launches
            return fused
        drawn = scores.distribution.draw(round.by_position(draft.index))
        return walk(draft, drawn, scores.distribution.units(drawn))
