"""`rejection`: speculative sampling on a chain or a window.

Leviathan et al. (arXiv 2211.17192), Chen et al. (2302.01318); for continuous units De Bortoli et al. (2501.05370). At
every node y ~ p is coupled with the drafted child x ~ q; the walk stops at the first y that is not x and emits it.
`verdict.drawn` is the coupled redraw at every node, so that a Jacobi window under this rule is maximal-coupling Jacobi.
Acceptance per node: 1 - TV(p, q).
Guarantee: `lossless`. Noise is fresh in every round, because the redraws look past the stopping point.
"""

import torch

from mmspec.core.laws import couple, where_nodes
from mmspec.core.noise import DraftNoise, Round
from mmspec.core.rules.rule import walk
from mmspec.core.types import Draft, Scores, Verdict


class Rejection:
    """See the module. No knobs."""

    exactness = "lossless"
    needs = frozenset({"chain"})
    offers = frozenset({"redraw"})

    def draft_noise(self, round: Round) -> DraftNoise:
        return DraftNoise(round, shared=False)

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        assert draft.index.is_chain
        law, last = scores.law, draft.nodes - 1
        drawn = law.draw(round.fresh(draft.nodes))
        if last and draft.law is not None:
            coupled = couple(law.take(draft.index.parent[:, 1:]), draft.law, draft.drafted, round.fresh(last))
            # An invalid child was never a proposal: its parent's free draw must stand.
            coupled = where_nodes(draft.valid[:, 1:], coupled, drawn[:, :last])
            drawn = torch.cat([coupled, drawn[:, last:]], 1)
        return walk(draft, drawn)
