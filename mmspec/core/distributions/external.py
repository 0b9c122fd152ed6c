"""The place of a distribution for units that are not drawn but come from outside (`Decoder.settle(…, truth=…)`)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions.distribution import Distribution, DrawsUnits, take_nodes
from mmspec.core.noise import Noise


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
