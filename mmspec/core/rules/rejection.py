"""`rejection`: speculative sampling on a chain or a window.

Leviathan et al. (arXiv 2211.17192), Chen et al. (2302.01318); for continuous units De Bortoli et al. (2501.05370). At
every node y ~ p is coupled with the drafted child x ~ q; the walk stops at the first y that differs from x and emits
it. `verdict.drawn` holds the coupled redraw at every node, so that a Jacobi window under this rule is maximal-coupling
Jacobi (2510.24211). Acceptance per node: 1 - TV(p, q), if the distribution's coupling is maximal.
Guarantee: `lossless`. Noise is fresh in every round, because the redraws look past the stopping point.
"""

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical, CouplesAtOnce, Distribution, couple, drawn_part, where_nodes
from mmspec.core.kernels.fused import coupled_and_walked
from mmspec.core.manifest import REJECTION
from mmspec.core.noise import Round
from mmspec.core.rules.parts import parts
from mmspec.core.rules.rule import DraftsAfresh, walk
from mmspec.core.types import Draft, Scores, Verdict


class Rejection(DraftsAfresh):
    """See the module. No knobs."""

    exactness: str = REJECTION.exactness
    needs, offers = REJECTION.needs, REJECTION.offers

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        assert draft.index.is_chain
        fused = coupled_and_walked(draft, scores.distribution, round)
        if fused is not None:  # the same in two launches
            return fused
        drawn = self._drawn(draft, scores.distribution, round)
        return walk(draft, drawn, scores.distribution.units(drawn))

    @staticmethod
    def _drawn(draft: Draft, distribution: Distribution, round: Round) -> Tensor:
        """The redraw at every node: `[batch, node, *draw]`."""
        noise, last = round.fresh(draft.nodes), draft.nodes - 1
        if not last or draft.distribution is None:
            return distribution.draw(noise)
        follows = draft.valid[:, 1:]  # an invalid child is no proposal: its parent draws freely
        # The class comes first: torch cannot trace whether an object has a protocol's members.
        if not isinstance(distribution, Categorical | CouplesAtOnce):
            nodes = torch.arange(last, device=draft.units.device)[None]
            coupled = couple(distribution.take(nodes), draft.distribution, draft.drafted, noise.at(nodes))
            free = distribution.draw(noise)
            return torch.cat([where_nodes(follows, coupled, free[:, :last]), free[:, last:]], 1)
        proposal, follows = drawn_part(draft.distribution, follows)
        if proposal is None:
            return distribution.draw(noise)
        if not isinstance(distribution, Categorical):
            return distribution.draw_coupled(proposal, draft.drafted, follows, noise)
        drawn: list[Tensor] = []
        order = torch.arange(draft.nodes, device=draft.units.device)[None]
        for part in parts(len(draft.units), last, distribution.size):
            at, x = order[:, part], draft.drafted[:, part]
            drawn.append(distribution.take(at).couple(proposal.take(at), x, noise.at(at), follows[:, part]))
        return torch.cat([*drawn, distribution.take(order[:, last:]).draw(noise.at(order[:, last:]))], 1)
