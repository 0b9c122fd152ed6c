"""`recursive-rejection`: trees whose siblings were sampled, with or without replacement.

SpecInfer (arXiv 2305.09781), SpecTr (2310.15141), Sequoia (2402.12374), RSD (2402.14160): siblings are tried in the
order in which they were drawn, starting with r = p; child k is accepted with probability min(1, r(x) / q_k(x)), else r
becomes the normalised (r - q_k)+; if no child is accepted, the unit is drawn from the last r. `draft.distribution` is
the distribution that each sibling was really drawn from: without replacement, q without its earlier siblings,
renormalised.
Guarantee: `lossless`. All nodes at once, one pass over the vocabulary per sibling rank.
"""

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical, PointMass, dense, take_nodes
from mmspec.core.manifest import RECURSIVE_REJECTION
from mmspec.core.noise import DraftNoise, Round, SpreadNoise, Substream
from mmspec.core.rules.rule import walk, walk_where
from mmspec.core.types import Draft, Scores, Verdict


class RecursiveRejection:
    """See the module. No knobs."""

    exactness: str = RECURSIVE_REJECTION.exactness
    needs, offers = RECURSIVE_REJECTION.needs, RECURSIVE_REJECTION.offers

    def draft_noise(self, round: Round) -> DraftNoise:
        return DraftNoise(round, shared=False)

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        noise, distribution = round.fresh(draft.nodes), scores.distribution
        if draft.nodes == 1 or draft.distribution is None or isinstance(distribution, PointMass):
            # One draw per depth: equal siblings then agree, and the walk cannot pick the better of two draws.
            index = draft.index
            shared = noise if index.is_chain else SpreadNoise(round.fresh(index.deepest + 1), index.depth)
            # In the substream of residuals, so that a row's draw does not depend on whether another row has a draft.
            return walk(draft, distribution.draw(shared.substream(Substream.RESIDUAL)))
        assert isinstance(distribution, Categorical)
        rest = distribution.on(None)  # [batch, node, vocab]: r at every node
        proposals = dense(draft.distribution, draft.drafted, distribution.size)
        coin = noise.substream(Substream.COIN).uniform()
        taken = torch.zeros(draft.valid.shape, dtype=torch.bool, device=rest.device)
        edge = torch.zeros_like(taken)
        drawn = torch.zeros_like(draft.units)
        for rank in range(draft.index.widest):
            child = self._child(draft, rank)  # [batch, node]: node id, 0 if there is none
            exists = child > 0
            q = take_nodes(proposals, (child - 1).clamp(min=0))
            x = draft.units.gather(1, child)
            kept = coin.gather(1, child) * q.gather(-1, x[..., None])[..., 0] < rest.gather(-1, x[..., None])[..., 0]
            kept &= exists & ~taken
            drawn = torch.where(kept, x, drawn)
            taken |= kept
            edge |= torch.zeros_like(edge).scatter_(1, torch.where(kept, child, 0), True)
            rest = torch.where(exists[..., None], self._residual(rest, q), rest)
        last = Categorical(rest).draw(noise.substream(Substream.RESIDUAL))
        # Units are not compared: of equal siblings only the accepted one may be followed. Following whichever leads
        # deeper would pick the better of two draws.
        return walk_where(draft, edge[:, 1:], torch.where(taken, drawn, last))

    @staticmethod
    def _residual(rest: Tensor, q: Tensor) -> Tensor:
        """The residual after a refused child: the normalised (r - q)+, or r itself if rounding leaves nothing."""
        residual = (rest - q).clamp(min=0)
        total = residual.sum(-1, keepdim=True)
        return torch.where(total > 0, residual / total, rest)

    @staticmethod
    def _child(draft: Draft, rank: int) -> Tensor:
        """Every node's valid child of that rank, or 0: `[batch, node]`."""
        index, rows = draft.index, len(draft.units)
        is_child = index.parent[:, None] == torch.arange(draft.nodes, device=draft.units.device)[:, None]
        is_child = (is_child & (index.rank == rank)[:, None]).expand(rows, -1, -1) & draft.valid[:, None]
        return torch.where(is_child.any(-1), is_child.int().argmax(-1), 0)
