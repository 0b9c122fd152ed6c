"""What the relaxed rules share: a draft is accepted for its neighbours' mass too, along a chain or a window. Lossy.

For every drafted unit x a rule names a group G(x) that contains x. Where q is a law, x is kept with probability
min(1, P(G) / Q), Q being the draft's mass that the rule compares with; else the residual, norm((p - q)+), is drawn.
Where x is a point mass, it is kept with probability P(G), else p without x is drawn. With groups of one this is
`rejection`, bit for bit: the same coins, the same residuals.
Guarantee: none. What one step alters has a closed form: with a(x) the chance that x is kept, out(y) = q(y) a(y) +
(1 - Σ q a) r(y), r the normalised residual.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.laws import Categorical, where_nodes
from mmspec.core.laws.mixed import dense
from mmspec.core.noise import DraftNoise, Lane, Noise, Round
from mmspec.core.rules.rule import walk
from mmspec.core.types import Draft, Scores, Verdict


@dataclass(frozen=True)
class Group:
    """Units that stand for one.

    Attributes:
        ids: `[batch, node, size]`; the unit itself comes first.
        inside: The same shape, bool: those that really belong to it.
    """

    ids: Tensor
    inside: Tensor

    def mass(self, probs: Tensor) -> Tensor:
        """Probability of the group under `probs [batch, node, vocab]`: `[batch, node]`."""
        return (probs.gather(-1, self.ids) * self.inside).sum(-1)


class Relaxing:
    """The common part; a rule adds `group` and says what the draft's mass is."""

    exactness = "lossy"
    needs = frozenset({"discrete", "chain"})
    offers = frozenset({"redraw"})

    def group(self, probs: Tensor, x: Tensor) -> Group:
        """The group of every drafted unit `x [batch, node]` under the target's `probs [batch, node, vocab]`."""
        raise NotImplementedError

    def against(self, group: Group, draft: Tensor, x: Tensor) -> Tensor:
        """The draft's mass that P(G) is compared with: that of x alone, unless a rule says otherwise."""
        return draft.gather(-1, x[..., None])[..., 0]

    def left(self, probs: Tensor, group: Group, draft: Tensor) -> Tensor:
        """What is drawn from where x is refused, not normalised: (p - q)+."""
        return (probs - draft).clamp(min=0)

    def draft_noise(self, round: Round) -> DraftNoise:
        return DraftNoise(round, shared=False)

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        law, last = scores.law, draft.nodes - 1
        drawn = law.draw(round.fresh(draft.nodes))
        if last and isinstance(law, Categorical):
            relaxed = self._coupled(law.on(None)[:, :last], draft, drawn[:, :last], round.fresh(last))
            relaxed = where_nodes(draft.valid[:, 1:], relaxed, drawn[:, :last])
            drawn = torch.cat([relaxed, drawn[:, last:]], 1)
        return walk(draft, drawn)

    def _coupled(self, probs: Tensor, draft: Draft, free: Tensor, noise: Noise) -> Tensor:
        """One unit at every node of a chain: the draft where it is kept, else what is drawn instead."""
        x, vocab = draft.drafted, probs.shape[-1]
        q = dense(draft.law, x, vocab)
        point = _is_point(draft, x)
        group = self.group(probs, x)
        mass, coin = group.mass(probs), noise.lane(Lane.COIN).uniform()
        keep = coin * self.against(group, q, x) < mass
        left = self.left(probs, group, q)
        weights = torch.where(left.sum(-1, keepdim=True) > 0, left, probs)
        exponential = noise.lane(Lane.RESIDUAL).exponential(vocab)
        kept = torch.where(keep, x, (weights / exponential).argmax(-1))
        return torch.where(point, _by_point(probs, x, free, group, coin, exponential), kept)


def _by_point(probs: Tensor, x: Tensor, free: Tensor, group: Group, coin: Tensor, exponential: Tensor) -> Tensor:
    """A point mass: kept where a free draw falls into its group; else p without x.

    Where it falls outside, the free draw itself serves, but for the share of p without x that lies inside.
    """
    hit = ((group.ids == free[..., None]) & group.inside).any(-1)
    own = probs.gather(-1, x[..., None])[..., 0]
    share = (group.mass(probs) - own) / (1 - own).clamp(min=torch.finfo(probs.dtype).tiny)
    inside = torch.zeros_like(probs).scatter_add_(-1, group.ids, group.inside.to(probs.dtype)).clamp(max=1)
    inside = inside.scatter(-1, x[..., None], 0.0)
    neighbour = (probs * inside / exponential).argmax(-1)
    return torch.where(hit, x, torch.where(coin < share, neighbour, free))


def _is_point(draft: Draft, x: Tensor) -> Tensor:
    """`[batch, node]` bool: drafted units that were not drawn."""
    law = draft.law
    if law is None:
        return torch.ones_like(x, dtype=torch.bool)
    random = getattr(law, "random", None)
    if random is not None:
        return ~random.expand_as(x)
    return torch.full_like(x, not isinstance(law, Categorical), dtype=torch.bool)
