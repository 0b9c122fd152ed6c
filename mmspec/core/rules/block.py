"""`block`: verification of a whole chain at once.

Block verification (Sun et al., arXiv 2403.10444): with w_i = min(1, w_{i-1} p(x_i) / q(x_i)), the longest prefix whose
coin is at most h_i is accepted, where h_i = S_i / (S_i + 1 - w_i), S_i = sum (w_i p - q)+ at node i, and h = w at the
last node. The residual at the stopping node is the normalised (w p - q)+.
Guarantee: `lossless`, and never fewer units in expectation than `rejection`. Coins of later nodes decide, too, so noise
by position would bias the output; the noise is fresh in every round.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical, PointMass, dense, dense_at, take_nodes
from mmspec.core.kernels.fused import block_residuals
from mmspec.core.manifest import BLOCK
from mmspec.core.noise import Noise, Round, Substream
from mmspec.core.rules.parts import parts
from mmspec.core.rules.rule import DraftsAfresh, path_to, walk
from mmspec.core.types import Draft, Scores, Verdict


class Block(DraftsAfresh):
    """See the module. No knobs. `verdict.drawn` is meaningful at the stopping node only."""

    exactness: str = BLOCK.exactness
    needs, offers = BLOCK.needs, BLOCK.offers

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        assert draft.index.is_chain
        noise, distribution = round.fresh(draft.nodes), scores.distribution
        if draft.nodes == 1 or draft.distribution is None or isinstance(distribution, PointMass):
            # In the substream of residuals, so that a row's draw does not depend on whether another row has a draft.
            return walk(draft, distribution.draw(noise.substream(Substream.RESIDUAL)))
        assert isinstance(distribution, Categorical)
        last, follows = draft.nodes - 1, draft.valid[:, 1:]  # node i < last has a child
        residuals = block_residuals(draft, distribution, round) or _Residuals(draft, distribution, noise)
        x = draft.drafted[..., None]
        weight = self._weights(distribution.probs[:, :-1].gather(-1, x)[..., 0], _proposed(draft, distribution.size))
        s = residuals.masses(weight[:, :-1])
        inner = s / (s + 1 - weight[:, :-1]).clamp(min=torch.finfo(s.dtype).tiny)
        h = torch.cat([torch.where(follows, inner, weight[:, :-1]), weight[:, -1:]], 1)
        stops = (noise.substream(Substream.COIN).uniform() <= h) & draft.valid
        stops[:, 0] = True
        order = torch.arange(draft.nodes, device=h.device)
        leaf = torch.where(stops, order, 0).amax(1)
        at, inside = leaf[:, None], leaf[:, None].clamp(max=last - 1)
        left = (at < last) & follows.gather(1, inside) & (s.gather(1, inside) > 0)
        unit = residuals.draw(weight.gather(1, at)[:, 0], leaf, left[:, 0])
        return Verdict(path_to(draft, leaf), leaf, unit, unit[:, None].expand(-1, draft.nodes))

    @staticmethod
    def _weights(p_x: Tensor, q_x: Tensor) -> Tensor:
        """w at every node, `[batch, node]`: a running product capped at 1, as a closed form over cumulative logs."""
        total = (p_x / q_x).log().cumsum(1)
        capped = total - total.clamp(min=0).cummax(1).values
        return torch.cat([torch.ones_like(capped[:, :1]), capped.exp()], 1)


@dataclass(frozen=True)
class _Residuals:
    """The residuals (w p - q)+ of a chain, few nodes at a time."""

    draft: Draft
    p: Categorical
    noise: Noise

    def masses(self, weight: Tensor) -> Tensor:
        """The sum of every residual, `[batch, node - 1]`, given w, `weight [batch, node - 1]`."""
        drafted, size = self.draft.drafted, self.p.size
        sums = []
        for part in parts(len(drafted), drafted.shape[1], size):
            q = dense_at(self.draft.distribution, drafted, size, part)
            sums.append(_residual(weight[:, part], self.p.probs[:, part], q).sum(-1))
        return torch.cat(sums, 1)

    def draw(self, weight: Tensor, leaf: Tensor, follows: Tensor) -> Tensor:
        """A draw from the residual at `leaf`, or from p where nothing follows; all arguments and it are `[batch]`."""
        draft, at = self.draft, leaf[:, None]
        inside = at.clamp(max=draft.nodes - 2)
        assert draft.distribution is not None
        p = take_nodes(self.p.probs, at)
        q = dense(draft.distribution.take(inside), draft.drafted.gather(1, inside), self.p.size)
        weights = torch.where(follows[:, None, None], _residual(weight[:, None], p, q), p)
        return Categorical(weights).draw(self.noise.substream(Substream.RESIDUAL).at(at))[:, 0]


def _proposed(draft: Draft, size: int) -> Tensor:
    """q(x) of the drafted units: `[batch, node - 1]`."""
    x, pieces = draft.drafted[..., None], parts(len(draft.drafted), draft.nodes - 1, size)
    q = [dense_at(draft.distribution, draft.drafted, size, part).gather(-1, x[:, part]) for part in pieces]
    return torch.cat(q, 1)[..., 0]


def _residual(weight: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """(w p - q)+ of `weight [batch, node]`, not normalised."""
    return (weight[..., None] * p - q).clamp(min=0)
