"""`block`: verification of a whole chain at once.

Block verification (Sun et al., arXiv 2403.10444): with w_i = min(1, w_{i-1} p(x_i) / q(x_i)), the longest prefix whose
coin is at most h_i is accepted, where h_i = S_i / (S_i + 1 - w_i), S_i = sum (w_i p - q)+ at node i, and h = w at the
last node. The residual at the stopping node is the normalised (w p - q)+.
Guarantee: `lossless`, and never fewer units in expectation than `rejection`. Coins of later nodes decide, too, so noise
by position would bias the output; the noise is fresh in every round.
"""

from functools import partial

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical, PointMass, dense, dense_at, take_nodes
from mmspec.core.manifest import BLOCK
from mmspec.core.noise import DraftNoise, Round, Substream
from mmspec.core.rules.parts import parts
from mmspec.core.rules.rule import path_to, walk
from mmspec.core.types import Draft, Scores, Verdict


class Block:
    """See the module. No knobs. `verdict.drawn` is meaningful at the stopping node only."""

    exactness: str = BLOCK.exactness
    needs, offers = BLOCK.needs, BLOCK.offers

    def draft_noise(self, round: Round) -> DraftNoise:
        return DraftNoise(round, shared=False)

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        assert draft.index.is_chain
        noise, distribution = round.fresh(draft.nodes), scores.distribution
        if draft.nodes == 1 or draft.distribution is None or isinstance(distribution, PointMass):
            # In the substream of residuals, so that a row's draw does not depend on whether another row has a draft.
            return walk(draft, distribution.draw(noise.substream(Substream.RESIDUAL)))
        assert isinstance(distribution, Categorical)
        size, last, follows = distribution.size, draft.nodes - 1, draft.valid[:, 1:]  # node i < last has a child
        proposals = partial(dense_at, draft.distribution, draft.drafted, size)
        pieces, x = parts(len(draft.units), last, size), draft.drafted[..., None]
        q_x = torch.cat([proposals(part).gather(-1, x[:, part]) for part in pieces], 1)[..., 0]
        weight = self._weights(distribution.probs[:, :-1].gather(-1, x)[..., 0], q_x)  # [batch, node]
        s = torch.cat(
            [_residual(weight[:, part], distribution.probs[:, part], proposals(part)).sum(-1) for part in pieces], 1
        )
        inner = s / (s + 1 - weight[:, :-1]).clamp(min=torch.finfo(s.dtype).tiny)
        h = torch.cat([torch.where(follows, inner, weight[:, :-1]), weight[:, -1:]], 1)
        stops = (noise.substream(Substream.COIN).uniform() <= h) & draft.valid
        stops[:, 0] = True
        order = torch.arange(draft.nodes, device=h.device)
        leaf = torch.where(stops, order, 0).amax(1)
        at, inside = leaf[:, None], leaf[:, None].clamp(max=last - 1)
        p = take_nodes(distribution.probs, at)
        q = dense(draft.distribution.take(inside), draft.drafted.gather(1, inside), size)
        left = (at < last) & follows.gather(1, inside) & (s.gather(1, inside) > 0)
        weights = torch.where(left[..., None], _residual(weight.gather(1, at), p, q), p)
        unit = Categorical(weights).draw(noise.substream(Substream.RESIDUAL).at(at))
        return Verdict(path_to(draft, leaf), leaf, unit[:, 0], unit.expand(-1, draft.nodes))

    @staticmethod
    def _weights(p_x: Tensor, q_x: Tensor) -> Tensor:
        """w at every node: a running product capped at 1, as a closed form over cumulative logs."""
        total = (p_x / q_x).log().cumsum(1)
        capped = total - total.clamp(min=0).cummax(1).values
        return torch.cat([torch.ones_like(capped[:, :1]), capped.exp()], 1)


def _residual(weight: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """(w p - q)+ of `weight [batch, node]`, not normalised."""
    return (weight[..., None] * p - q).clamp(min=0)
