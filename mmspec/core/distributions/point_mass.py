"""Point masses: argmax, top-k, lookups, copies, truths that came from outside. Drawing from one needs no noise."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions.distribution import Distribution, DrawsUnits, finite_nodes, take_nodes
from mmspec.core.noise import Noise


@dataclass(frozen=True)
class PointMass(DrawsUnits):
    """All mass on one unit per node."""

    points: Tensor  # `[batch, node, *unit]`

    @staticmethod
    def cat(distributions: "Sequence[PointMass]") -> "PointMass":
        return PointMass(torch.cat([distribution.points for distribution in distributions], 1))

    def draw(self, noise: Noise) -> Tensor:
        return self.points

    def couple(self, draft: Distribution, x: Tensor, noise: Noise) -> Tensor:
        return self.points

    def take(self, nodes: Tensor) -> "PointMass":
        return PointMass(take_nodes(self.points, nodes))

    def confidence(self) -> Tensor:
        return torch.zeros(self.points.shape[:2], dtype=torch.float32, device=self.points.device)

    def finite(self) -> Tensor:
        if not self.points.is_floating_point():
            return torch.ones(self.points.shape[:2], dtype=torch.bool, device=self.points.device)
        return finite_nodes(self.points)
