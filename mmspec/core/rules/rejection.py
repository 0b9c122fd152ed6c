"""`rejection`: speculative sampling on a chain or a window.

Leviathan et al. (arXiv 2211.17192), Chen et al. (2302.01318); for continuous units De Bortoli et al. (2501.05370). At
every node y ~ p is coupled with the drafted child x ~ q; the walk stops at the first y that is not x and emits it.
`verdict.drawn` is the coupled redraw at every node, so that a Jacobi window under this rule is maximal-coupling Jacobi.
Acceptance per node: 1 - TV(p, q), where the law's coupling is maximal.
Guarantee: `lossless`. Noise is fresh in every round, because the redraws look past the stopping point.
"""

import torch
from torch import Tensor

from mmspec.core.laws import Law, couple, drawn_part, where_nodes
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
        drawn = self._drawn(draft, scores.law, round)
        return walk(draft, drawn, scores.law.units(drawn))

    @staticmethod
    def _drawn(draft: Draft, law: Law, round: Round) -> Tensor:
        """The redraw at every node: `[batch, node, *draw]`."""
        noise, last = round.fresh(draft.nodes), draft.nodes - 1
        if not last or draft.law is None:
            return law.draw(noise)
        follows = draft.valid[:, 1:]  # an invalid child was never a proposal: its parent's free draw must stand
        at_once = getattr(law, "draw_coupled", None)
        if at_once is not None:
            proposal, follows = drawn_part(draft.law, follows)
            return law.draw(noise) if proposal is None else at_once(proposal, draft.drafted, follows, noise)
        drawn = law.draw(noise)
        coupled = couple(law.take(draft.index.parent[:, 1:]), draft.law, draft.drafted, round.fresh(last))
        return torch.cat([where_nodes(follows, coupled, drawn[:, :last]), drawn[:, last:]], 1)
