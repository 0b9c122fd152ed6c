"""`causal-sets`: every token is verified once and is emitted whatever becomes of the tokens before it. Lossy.

A sampler of our own, for causal models. The released code of continuous speculative decoding (arXiv 2411.11925) is its
model: one pass verifies a set of drafts in the context before the set, refused ones are replaced in place, and later
ones are kept, so that the number of passes is fixed. That code runs MAR, whose tokens of one pass do not attend to each
other: there it equals plain MAR with as many sets as there are passes, without any draft
(`mmspec_continuous.models.mar`).

A causal transformer attends to the drafts before a token and has to read what it emits. So here a token is drawn in one
pass, after drafts that the same pass may replace, and is read and emitted by the next
(`mmspec_continuous.drafters.jacobi`). Drafted units without a distribution are decided: they are accepted. The others
are coupled with the target's distribution as under `rejection`. That coupling is exact, drafts serve only as contexts,
and no laxer test could make the method faster: there is no `tau`.
Guarantee: none; the distribution is another one than the target's, except where tokens do not depend on each other.
The bias is not measured: a token's density given the tokens that it ends up behind, over all noise, is not known. The
Fréchet distance of `python -m tools.bench continuous` shows what it does to pictures.
No knobs; the drafter sets the size of a set, k // 2.
"""

import torch

from mmspec.core.distributions import Mixed
from mmspec.core.noise import Round
from mmspec.core.rules import Rejection
from mmspec.core.rules.rule import walk_where
from mmspec.core.types import Draft, Scores, Verdict
from mmspec_continuous.specs import CAUSAL_SETS


class CausalSets(Rejection):
    exactness: str = CAUSAL_SETS.exactness
    needs, offers = CAUSAL_SETS.needs, CAUSAL_SETS.offers

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        verdict = super().accept(draft, scores, round)
        if draft.nodes == 1:
            return verdict
        decided = torch.zeros_like(draft.valid[:, 1:])
        if isinstance(draft.distribution, Mixed):
            decided = ~draft.distribution.random & draft.valid[:, 1:]
        return walk_where(draft, decided, verdict.drawn, scores.distribution.units(verdict.drawn))
