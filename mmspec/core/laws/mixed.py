"""One window may mix units that were drawn from a law with units that are point masses (a fresh initialisation)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.laws.categorical import Categorical
from mmspec.core.laws.law import Law, take_nodes, where_nodes
from mmspec.core.laws.point_mass import PointMass
from mmspec.core.noise import Noise


@dataclass(frozen=True)
class Mixed:
    """`law` where `random`, a point mass elsewhere.

    Attributes:
        law: The law of the nodes that were drawn.
        random: `[batch, node]` bool.
        points: `[batch, node, *unit]`: the point masses (what stands at random nodes is not read).
    """

    law: Law
    random: Tensor
    points: Tensor

    @staticmethod
    def cat(laws: "Sequence[Mixed]") -> "Mixed":
        """Laws joined along the nodes."""
        law = type(laws[0].law).cat([mixed.law for mixed in laws])
        return Mixed(law, torch.cat([m.random for m in laws], 1), torch.cat([m.points for m in laws], 1))

    def draw(self, noise: Noise) -> Tensor:
        return where_nodes(self.random, self.law.units(self.law.draw(noise)), self.points)

    def couple(self, draft: Law, x: Tensor, noise: Noise) -> Tensor:
        raise TypeError("a target's law is one law at every node; only drafts may be mixed")

    def units(self, draws: Tensor) -> Tensor:
        return draws

    def having(self, draws: Tensor) -> "Mixed":
        return self

    def take(self, nodes: Tensor) -> "Mixed":
        return Mixed(self.law.take(nodes), take_nodes(self.random, nodes), take_nodes(self.points, nodes))

    def confidence(self) -> Tensor:
        return torch.where(self.random, self.law.confidence(), 0.0)

    def finite(self) -> Tensor:
        return self.law.finite() | ~self.random


def couple(target: Law, draft: Law | None, x: Tensor, noise: Noise) -> Tensor:
    """y ~ target, given x ~ draft, equal as often as the laws can: draws, `[batch, node, *draw]`.

    A draft that is a point mass (`None`, too) needs no coupling: a plain draw equals it with probability p(x), which is
    1 - TV. Families couple among themselves.
    """
    if draft is None or isinstance(draft, PointMass) or isinstance(target, PointMass):
        return target.draw(noise)
    if isinstance(draft, Mixed):
        return where_nodes(draft.random, couple(target, draft.law, x, noise), target.draw(noise))
    return target.couple(draft, x, noise)


def drawn_part(draft: Law | None, follows: Tensor) -> tuple[Law | None, Tensor]:
    """The law that a draft was drawn from, and the nodes of `follows [batch, node]` where it was; None: nowhere."""
    if isinstance(draft, Mixed):
        return drawn_part(draft.law, follows & draft.random)
    return (None if isinstance(draft, PointMass) else draft), follows


def dense(draft: Law | None, units: Tensor, size: int) -> Tensor:
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
        return where_nodes(draft.random, dense(draft.law, units, size), one_hot)
    raise TypeError(f"this rule needs a categorical draft, got {type(draft).__name__}")
