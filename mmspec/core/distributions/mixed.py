"""Drafts that mix units drawn from a distribution with point masses (new slots of a window), and coupling with them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.distributions.distribution import Distribution, DrawsUnits, take_nodes, where_nodes
from mmspec.core.distributions.grouped import Grouped
from mmspec.core.distributions.point_mass import PointMass
from mmspec.core.noise import Noise


@dataclass(frozen=True)
class Mixed(DrawsUnits):
    """`distribution` where `random`, a point mass elsewhere; of drafts only."""

    distribution: Distribution  # the distribution that random nodes were drawn from
    random: Tensor  # `[batch, node]` bool
    points: Tensor  # the point masses, `[batch, node, *unit]`; values at random nodes are not read

    @staticmethod
    def cat(distributions: "Sequence[Mixed]") -> "Mixed":
        distribution = type(distributions[0].distribution).cat([mixed.distribution for mixed in distributions])
        return Mixed(
            distribution,
            torch.cat([m.random for m in distributions], 1),
            torch.cat([m.points for m in distributions], 1),
        )

    def draw(self, noise: Noise) -> Tensor:
        return where_nodes(self.random, self.distribution.units(self.distribution.draw(noise)), self.points)

    def couple(self, draft: Distribution, x: Tensor, noise: Noise) -> Tensor:
        raise TypeError("a target's nodes have distributions of one family; only drafts may be mixed")

    def take(self, nodes: Tensor) -> "Mixed":
        return Mixed(self.distribution.take(nodes), take_nodes(self.random, nodes), take_nodes(self.points, nodes))

    def confidence(self) -> Tensor:
        return torch.where(self.random, self.distribution.confidence(), 0.0)

    def finite(self) -> Tensor:
        return self.distribution.finite() | ~self.random


def couple(target: Distribution, draft: Distribution | None, x: Tensor, noise: Noise) -> Tensor:
    """Draws y ~ target, `[batch, node, *draw]`, given x ~ draft, so that y = x as often as possible.

    A draft that is a point mass (or None) needs no coupling: a free draw equals it with probability p(x), which is
    1 - TV. All others are coupled by the target's own `couple`.
    """
    if draft is None or isinstance(draft, PointMass) or isinstance(target, PointMass):
        return target.draw(noise)
    if isinstance(draft, Mixed):
        return where_nodes(draft.random, couple(target, draft.distribution, x, noise), target.draw(noise))
    return target.couple(draft, x, noise)


def drawn_part(draft: Distribution | None, follows: Tensor) -> tuple[Distribution | None, Tensor]:
    """The distribution of a draft (None: all point masses), and where in `follows [batch, node]` it was drawn."""
    if isinstance(draft, Mixed):
        return drawn_part(draft.distribution, follows & draft.random)
    return (None if isinstance(draft, PointMass) else draft), follows


def dense(draft: Distribution | None, units: Tensor, size: int) -> Tensor:
    """Probabilities of a draft `units [batch, node]`, point masses as one-hot rows: `[batch, node, size]` float32."""
    if isinstance(draft, Categorical):
        return draft.on(None)
    one_hot = torch.zeros(*units.shape, size, dtype=torch.float32, device=units.device)
    one_hot.scatter_(-1, units[..., None], 1.0)
    if draft is None or isinstance(draft, PointMass | Grouped):  # of a unit that is given, all is known
        return one_hot
    if isinstance(draft, Mixed):
        return where_nodes(draft.random, dense(draft.distribution, units, size), one_hot)
    raise TypeError(f"this rule needs a categorical draft, got {type(draft).__name__}")


def dense_at(draft: Distribution | None, units: Tensor, size: int, nodes: slice) -> Tensor:
    """`dense` at some nodes, `[batch, n, size]`: the others are not made dense, and dense ones are not copied."""
    if isinstance(draft, Categorical) and draft.ids is None:
        return draft.probs[:, nodes]
    index = torch.arange(units.shape[1], device=units.device)[None, nodes]
    return dense(draft if draft is None else draft.take(index), units[:, nodes], size)
