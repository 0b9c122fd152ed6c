"""Point mass: argmax, top-k, lookups, copies, truths. No randomness of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.laws.law import Law, take_nodes
from mmspec.core.noise import Noise


@dataclass(frozen=True)
class PointMass:
    """All mass on one unit a node.

    Attributes:
        units: `[batch, node, *unit]`.
    """

    units: Tensor

    @staticmethod
    def cat(laws: "Sequence[PointMass]") -> "PointMass":
        """Laws joined along the nodes."""
        return PointMass(torch.cat([law.units for law in laws], 1))

    def draw(self, noise: Noise) -> Tensor:
        return self.units

    def couple(self, draft: Law, x: Tensor, noise: Noise) -> Tensor:
        return self.units

    def take(self, nodes: Tensor) -> "PointMass":
        return PointMass(take_nodes(self.units, nodes))

    def confidence(self) -> Tensor:
        return torch.zeros(self.units.shape[:2], device=self.units.device)

    def finite(self) -> Tensor:
        if not self.units.is_floating_point():
            return torch.ones(self.units.shape[:2], dtype=torch.bool, device=self.units.device)
        return self.units.isfinite().flatten(2).all(-1)
