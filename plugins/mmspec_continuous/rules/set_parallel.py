"""`set-parallel`: every token is verified once and is emitted whatever becomes of the tokens before it. Lossy.

This is what the released code of continuous speculative decoding does (arXiv 2411.11925): one pass of the target
verifies a set of drafts in the context before the set; refused ones are replaced in place, and later ones are kept. So
the number of passes is fixed, and acceptance has no influence on it. In MAR, whose tokens of one step do not attend to
each other, it equals plain MAR with as many steps as there are passes, without any draft: compare with that.

A causal transformer attends to the drafts before a token and has to read what it emits. So here a token is drawn in one
pass, after drafts that the same pass may replace, and is read and emitted by the next
(`mmspec_continuous.drafters.sets`). Drafted units without a distribution are decided: they are accepted. The others are
coupled with the target's distribution as under `rejection`. That coupling is exact, drafts serve only as contexts, and
no laxer test could make the method faster: there is no `tau`.
Guarantee: none; the distribution is another one than the target's, except where tokens do not depend on each other.
The bias is not measured: a token's density given the tokens that it ends up behind, over all noise, is not known. The
Fréchet distance of `python -m tools.bench continuous` shows what it does to pictures.
No knobs; the drafter sets the size of a set, k // 2.
"""

import torch

from mmspec.core.distributions import Mixed
from mmspec.core.noise import DraftNoise, Round
from mmspec.core.rules import Rejection
from mmspec.core.rules.rule import walk_where
from mmspec.core.types import Draft, Scores, Verdict
from mmspec_continuous.specs import SET_PARALLEL


class SetParallel:
    exactness: str = SET_PARALLEL.exactness
    needs, offers = SET_PARALLEL.needs, SET_PARALLEL.offers

    def draft_noise(self, round: Round) -> DraftNoise:
        return DraftNoise(round, shared=False)

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        verdict = Rejection().accept(draft, scores, round)
        if draft.nodes == 1:
            return verdict
        decided = torch.zeros_like(draft.valid[:, 1:])
        if isinstance(draft.distribution, Mixed):
            decided = ~draft.distribution.random & draft.valid[:, 1:]
        return walk_where(draft, decided, verdict.drawn, scores.distribution.units(verdict.drawn))
