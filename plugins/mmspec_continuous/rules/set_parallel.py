"""`set-parallel`: every token is judged once, and stands whatever becomes of the tokens before it. Lossy.

What the released code of continuous speculative decoding does (arXiv 2411.11925): one pass of the target judges a whole
set of drafts in the context that it knew before them; refused ones are replaced in place, and later ones are kept. So
the number of passes is fixed, and acceptance has no influence on it. On MAR, whose tokens of a step do not see each
other, that is nothing but MAR with as many steps as there are passes, which needs no draft: compare with that.
A causal transformer sees the drafts that stand before a token, and has to read what it emits. So here a token is drawn
in one pass, after drafts that may be replaced in that very pass, and read and emitted by the next
(`mmspec_continuous.drafters.sets`): units that the draft hands over without a distribution are decided, and stand; the
others are coupled with the target's distribution at their place, as under `rejection`. Coupled exactly, drafts serve as
contexts only: no test could make this faster, so that there is no `tau` here.
Guarantee: none: another sampler, with a distribution of its own. Exact where tokens do not depend on one another.
What cannot be measured: the bias. A token's density after the tokens that it ends up behind, over all noise, is not
known; what it does to pictures, the Fréchet distance of `mmspec bench continuous` tells.
No knobs; the size of a set is the drafter's: k // 2.
"""

import torch

from mmspec.core.distributions import Mixed
from mmspec.core.noise import DraftNoise, Round
from mmspec.core.rules import Rejection
from mmspec.core.rules.rule import walk_where
from mmspec.core.types import Draft, Scores, Verdict
from mmspec_continuous.plugin import SET_PARALLEL


class SetParallel:
    """See the module."""

    exactness: str = SET_PARALLEL.exactness
    needs, offers = SET_PARALLEL.needs, SET_PARALLEL.offers

    def draft_noise(self, round: Round) -> DraftNoise:
        return DraftNoise(round, shared=False)

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        verdict = Rejection().accept(draft, scores, round)
        if draft.nodes == 1:
            return verdict
        decided = (
            ~draft.distribution.random
            if isinstance(draft.distribution, Mixed)
            else torch.zeros_like(draft.valid[:, 1:])
        )
        return walk_where(draft, decided & draft.valid[:, 1:], verdict.drawn, scores.distribution.units(verdict.drawn))
