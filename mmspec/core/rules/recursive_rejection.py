"""`recursive-rejection`: trees whose siblings were sampled, with or without replacement.

SpecInfer (arXiv 2305.09781), SpecTr (2310.15141), Sequoia (2402.12374), RSD (2402.14160): siblings are tried in the
order in which they were drawn, starting with r = p; child k is accepted with probability min(1, r(x) / q_k(x)), else r
becomes the normalised (r - q_k)+; if no child is accepted, the unit is drawn from the last r. `draft.distribution` is
the distribution that each sibling was really drawn from: without replacement, q without its earlier siblings,
renormalised.
Guarantee: `lossless`. The walk visits the nodes in order and holds one residual a row: memory does not grow with trees.
The price is a Python loop of small steps over the nodes, which a device has to be given one after another.
"""

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical, PointMass, dense_at
from mmspec.core.kernels.fused import siblings_tried
from mmspec.core.manifest import RECURSIVE_REJECTION
from mmspec.core.noise import DraftNoise, Round, SpreadNoise, Substream
from mmspec.core.rules.rule import path_to, walk
from mmspec.core.types import Draft, Scores, Verdict


class RecursiveRejection:
    """See the module. No knobs. `verdict.drawn` is meaningful on the accepted path only."""

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
        fused = siblings_tried(draft, distribution, round)
        if fused is not None:  # the same in one launch
            return fused
        assert isinstance(distribution, Categorical)
        coin, on_cpu = noise.substream(Substream.COIN).uniform(), draft.units.device.type == "cpu"
        here = torch.zeros_like(draft.units[:, :1])  # [batch, 1]: the node that the walk has reached
        length, drawn = here, torch.zeros_like(draft.units)
        size = distribution.size
        rest = dense_at(distribution, draft.units, size, slice(0, 1))  # [batch, 1, vocab]: r there
        # Nodes follow their parents, and siblings each other in the order of their draw: so one visit a node is enough.
        for child in range(1, draft.nodes):
            tried = (draft.index.parent[:, child, None] == here) & draft.valid[:, child, None]
            if on_cpu and not tried.any():  # on a GPU this would be a host sync
                continue
            x = draft.units[:, child, None]
            q = dense_at(draft.distribution, draft.drafted, size, slice(child - 1, child))
            p_x, q_x = (values.gather(-1, x[..., None])[..., 0] for values in (rest, q))
            # Units are not compared: of equal siblings only the accepted one may be followed. Following whichever leads
            # deeper would pick the better of two draws.
            kept = tried & (coin[:, child, None] * q_x < p_x)
            rest = torch.where((tried & ~kept)[..., None], self._residual(rest, q), rest)
            p = dense_at(distribution, draft.units, size, slice(child, child + 1))
            rest = torch.where(kept[..., None], p, rest)
            drawn = torch.where(kept, drawn.scatter(1, here, x), drawn)
            here, length = torch.where(kept, child, here), length + kept
        last = Categorical(rest).draw(noise.substream(Substream.RESIDUAL).at(here))
        return Verdict(path_to(draft, here[:, 0]), length[:, 0], last[:, 0], drawn.scatter(1, here, last))

    @staticmethod
    def _residual(rest: Tensor, q: Tensor) -> Tensor:
        """The residual after a refused child: the normalised (r - q)+, or r itself if rounding leaves nothing."""
        residual = (rest - q).clamp(min=0)
        # A sum to a single number is cut among threads, and is rounded otherwise than that of a row among others.
        total = residual.expand(-1, 2, -1).sum(-1, keepdim=True)[:, :1]
        return torch.where(total > 0, residual / total, rest)
