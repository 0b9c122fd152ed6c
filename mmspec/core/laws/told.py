"""Where a law would be, of units that nobody draws: a player's actions are told (`Decoder.settle(…, truth=…)`)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.laws.law import Law, take_nodes
from mmspec.core.noise import Noise


@dataclass(frozen=True)
class Told:
    """No law at all; has the nodes and nothing else.

    Attributes:
        nodes: `[batch, node]`, values are not read.
    """

    nodes: Tensor

    @staticmethod
    def cat(laws: "Sequence[Told]") -> "Told":
        """Joined along the nodes."""
        return Told(torch.cat([law.nodes for law in laws], 1))

    def draw(self, noise: Noise) -> Tensor:
        raise ValueError("actions are the player's, not a model's: give them as settle(state, pending, truth=actions)")

    def couple(self, draft: Law, x: Tensor, noise: Noise) -> Tensor:
        return self.draw(noise)

    def units(self, draws: Tensor) -> Tensor:
        return draws

    def having(self, draws: Tensor) -> "Told":
        return self

    def take(self, nodes: Tensor) -> "Told":
        return Told(take_nodes(self.nodes, nodes))

    def confidence(self) -> Tensor:
        return torch.zeros(self.nodes.shape, dtype=torch.float32, device=self.nodes.device)

    def finite(self) -> Tensor:
        return torch.ones(self.nodes.shape, dtype=torch.bool, device=self.nodes.device)
