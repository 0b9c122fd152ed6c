"""Distributions from which nothing is drawn by chance.

Point masses are argmax, top-k, lookups, copies, truths that came from outside. Where the truth comes later
(`Decoder.settle(…, truth=…)`), there is no distribution at all.
"""

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


@dataclass(frozen=True)
class External(DrawsUnits):
    """No distribution: the nodes only. Drawing from it is an error, because the truth has to be given."""

    nodes: Tensor  # `[batch, node]`; its shape and device are used, its values are not read

    @staticmethod
    def cat(distributions: "Sequence[External]") -> "External":
        return External(torch.cat([distribution.nodes for distribution in distributions], 1))

    def draw(self, noise: Noise) -> Tensor:
        raise ValueError(
            "these units come from outside and are not drawn: give them as settle(state, pending, truth=units)"
        )

    def couple(self, draft: Distribution, x: Tensor, noise: Noise) -> Tensor:
        return self.draw(noise)

    def take(self, nodes: Tensor) -> "External":
        return External(take_nodes(self.nodes, nodes))

    def confidence(self) -> Tensor:
        return torch.zeros(self.nodes.shape, dtype=torch.float32, device=self.nodes.device)

    def finite(self) -> Tensor:
        return torch.ones(self.nodes.shape, dtype=torch.bool, device=self.nodes.device)
