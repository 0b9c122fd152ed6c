"""One window may mix units that were drawn from a distribution with units that are point masses (a fresh
initialisation).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.distributions.distribution import Distribution, take_nodes, where_nodes
from mmspec.core.distributions.point_mass import PointMass
from mmspec.core.noise import Noise


@dataclass(frozen=True)
class Mixed:
    """`distribution` where `random`, a point mass elsewhere.

    Attributes:
        distribution: The distribution of the nodes that were drawn.
        random: `[batch, node]` bool.
        points: `[batch, node, *unit]`: the point masses (what stands at random nodes is not read).
    """

    distribution: Distribution
    random: Tensor
    points: Tensor

    @staticmethod
    def cat(distributions: "Sequence[Mixed]") -> "Mixed":
        """Distributions joined along the nodes."""
        distribution = type(distributions[0].distribution).cat([mixed.distribution for mixed in distributions])
        return Mixed(
            distribution,
            torch.cat([m.random for m in distributions], 1),
            torch.cat([m.points for m in distributions], 1),
        )

    def draw(self, noise: Noise) -> Tensor:
        return where_nodes(self.random, self.distribution.units(self.distribution.draw(noise)), self.points)

    def couple(self, draft: Distribution, x: Tensor, noise: Noise) -> Tensor:
        raise TypeError("a target's distribution is one distribution at every node; only drafts may be mixed")

    def units(self, draws: Tensor) -> Tensor:
        return draws

    def with_draws(self, draws: Tensor) -> "Mixed":
        return self

    def take(self, nodes: Tensor) -> "Mixed":
        return Mixed(self.distribution.take(nodes), take_nodes(self.random, nodes), take_nodes(self.points, nodes))

    def confidence(self) -> Tensor:
        return torch.where(self.random, self.distribution.confidence(), 0.0)

    def finite(self) -> Tensor:
        return self.distribution.finite() | ~self.random


def couple(target: Distribution, draft: Distribution | None, x: Tensor, noise: Noise) -> Tensor:
    """y ~ target, given x ~ draft, equal as often as the distributions can: draws, `[batch, node, *draw]`.

    A draft that is a point mass (`None`, too) needs no coupling: a plain draw equals it with probability p(x), which is
    1 - TV. Families couple among themselves.
    """
    if draft is None or isinstance(draft, PointMass) or isinstance(target, PointMass):
        return target.draw(noise)
    if isinstance(draft, Mixed):
        return where_nodes(draft.random, couple(target, draft.distribution, x, noise), target.draw(noise))
    return target.couple(draft, x, noise)


def drawn_part(draft: Distribution | None, follows: Tensor) -> tuple[Distribution | None, Tensor]:
    """The distribution that a draft was drawn from, and the nodes of `follows [batch, node]` where it was; None:
    nowhere.
    """
    if isinstance(draft, Mixed):
        return drawn_part(draft.distribution, follows & draft.random)
    return (None if isinstance(draft, PointMass) else draft), follows


def dense(draft: Distribution | None, units: Tensor, size: int) -> Tensor:
    """Probabilities of a categorical draft, point masses as one-hot rows: `[batch, node, size]` float32.

    Args:
        draft: Categorical, mixed, point mass or None.
        units: What was drafted, `[batch, node]` int64.
        size: Vocabulary size.
    """
    if isinstance(draft, Categorical):
        return draft.on(None)
    one_hot = torch.zeros(*units.shape, size, dtype=torch.float32, device=units.device)
    one_hot.scatter_(-1, units[..., None], 1.0)
    if draft is None or isinstance(draft, PointMass):
        return one_hot
    if isinstance(draft, Mixed):
        return where_nodes(draft.random, dense(draft.distribution, units, size), one_hot)
    raise TypeError(f"this rule needs a categorical draft, got {type(draft).__name__}")
