"""Drafts that were drawn in two steps: a group of units, and then a unit of it.

Of the groups that were not drawn nothing is known but how likely each is as a whole: so a drafter that spells some
units in several pieces knows the second piece's distribution behind the first one that it drew. Both steps are coupled,
one behind the other: the target's group with the drafted one, and the target's unit, given its group, with the drafted
unit.
Guarantee: y ~ p exactly. A drafted x of the group g is kept with probability
min(1, p(g) / q(g)) · min(1, p(x | g) / q(x | g)); where every unit is a group of its own, the coupling is maximal.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.distributions.distribution import Distribution, DrawsUnits
from mmspec.core.noise import Noise, Substream


@dataclass(frozen=True)
class Grouped(DrawsUnits):
    """See the module; of drafts only."""

    distribution: Categorical  # of the groups, dense: a group goes by the name of one of its units
    inside: Categorical  # of the units of the drafted group, dense
    group_of: Tensor  # `[vocab]` int64: the name of every unit's group

    @staticmethod
    def cat(distributions: "Sequence[Grouped]") -> "Grouped":
        return Grouped(
            Categorical.cat([grouped.distribution for grouped in distributions]),
            Categorical.cat([grouped.inside for grouped in distributions]),
            distributions[0].group_of,
        )

    def draw(self, noise: Noise) -> Tensor:
        raise TypeError("the second step of such a draw is known of one group alone: its units were drawn before")

    def couple(self, draft: Distribution, x: Tensor, noise: Noise) -> Tensor:
        raise TypeError("a target's distribution is known of all units; only drafts are drawn in two steps")

    def couple_target(self, target: Categorical, x: Tensor, noise: Noise, follows: Tensor | None = None) -> Tensor:
        p = target.on(None)  # [batch, node, vocab]
        name = self.group_of.expand_as(p)
        wholes = Categorical(torch.zeros_like(p).scatter_add_(-1, name, p))
        group = wholes.couple(self.distribution, self.group_of[x], noise)
        given = torch.where(name == group[..., None], p, 0.0)
        given = given / given.sum(-1, keepdim=True).clamp(min=torch.finfo(given.dtype).tiny)
        q = self.inside.on(None)
        coin = noise.substream(Substream.SECOND_COIN).uniform()
        keep = coin * self.inside.of(x) < given.gather(-1, x[..., None])[..., 0]
        left = (given - q).clamp(min=0)
        left = torch.where(left.sum(-1, keepdim=True) > 0, left, given)
        other = (left / noise.substream(Substream.SECOND).exponential(p.shape[-1])).argmax(-1)
        coupled = torch.where(keep, x, other)
        return coupled if follows is None else torch.where(follows, coupled, target.draw(noise))

    def take(self, nodes: Tensor) -> "Grouped":
        return Grouped(self.distribution.take(nodes), self.inside.take(nodes), self.group_of)

    def confidence(self) -> Tensor:
        return self.distribution.confidence()

    def finite(self) -> Tensor:
        return self.distribution.finite() & self.inside.finite()
