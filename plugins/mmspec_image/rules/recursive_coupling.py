"""`recursive-coupling`: recursive rejection at every node at once, so that every node of a tree has a redraw.

The rule of SJD-PAC (arXiv 2603.18599): siblings are tried one after the other as in recursive rejection (SpecInfer,
2305.09781; RSD, 2402.14160), r = p, then the normalised (r - q_j)+ after each that is refused, and a window goes on
behind a rejection. At every node one y is drawn so: y is the first child that is accepted, with probability
min(1, r(x_j) / q_j(x_j)), else a draw from the last r. The walk follows the children that equal their y; on a chain
this is `rejection`, maximal coupling.
Guarantee: `lossless`. y ~ p at every node, whatever happens at the others, since every node has coins of its own: so
`verdict.drawn` may be the next window. Noise is fresh in every round. Unlike `recursive-rejection` it holds a residual
for every node, not one a row. No knobs.
"""

import torch

from mmspec.core.distributions import Categorical, PointMass, dense
from mmspec.core.noise import Round, Substream
from mmspec.core.rules import RecursiveRejection
from mmspec.core.rules.rule import walk_where
from mmspec.core.rules.siblings import children_of, residual
from mmspec.core.types import Draft, Scores, Verdict
from mmspec_image.specs import RECURSIVE_COUPLING


class RecursiveCoupling(RecursiveRejection):
    exactness: str = RECURSIVE_COUPLING.exactness
    needs, offers = RECURSIVE_COUPLING.needs, RECURSIVE_COUPLING.offers

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        distribution = scores.distribution
        if draft.nodes == 1 or isinstance(distribution, PointMass):
            return super().accept(draft, scores, round)  # nothing is coupled: a draw at every node
        assert isinstance(distribution, Categorical)
        noise, size = round.fresh(draft.nodes), distribution.size
        coin = noise.substream(Substream.COIN).uniform()
        coin[:, 0] = torch.inf  # node 0 is nobody's child: it stands for "no child is left", and is not kept
        child, sibling = children_of(draft)
        readable = draft.units.device.type == "cpu" and not torch.compiler.is_compiling()
        rest, followed = distribution.on(None), torch.zeros_like(child)  # the child that y equals; 0: none
        for _ in range(draft.index.widest):
            if readable and not child.any():  # elsewhere this would be a host sync
                break
            x = draft.units.gather(1, child)
            drawn_from = None if draft.distribution is None else draft.distribution.take((child - 1).clamp(min=0))
            q = dense(drawn_from, x, size)
            p_x, q_x = (values.gather(-1, x[..., None])[..., 0] for values in (rest, q))
            kept = coin.gather(1, child) * q_x < p_x
            rest = torch.where(((child > 0) & ~kept)[..., None], residual(rest, (rest - q).clamp(min=0)), rest)
            followed = torch.where(kept, child, followed)
            child = torch.where(kept, 0, sibling.gather(1, child))
        free = Categorical(rest).draw(noise.substream(Substream.RESIDUAL))
        drawn = torch.where(followed > 0, draft.units.gather(1, followed), free)
        parent = draft.index.parent[:, 1:].expand(len(drawn), -1)
        order = torch.arange(1, draft.nodes, device=parent.device)
        # By node and not by unit: of equal siblings only the one that was tried and accepted may be followed.
        return walk_where(draft, followed.gather(1, parent) == order, drawn)
