"""Features of known units that a head has not read yet."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions import take_nodes
from mmspec.core.live import Live
from mmspec.core.state import State


@dataclass(frozen=True)
class Rows:
    """Rows of a head, at the right edge: the last column is the one whose unit is the root."""

    features: Tensor  # `[batch, column, width]`
    count: Tensor  # `[batch]` int64: columns of each row of the batch, counted from the right

    @staticmethod
    def at_left(features: Tensor, count: Tensor) -> "Rows":
        """Rows of features whose first `count` columns count."""
        columns = features.shape[1]
        order = torch.arange(columns, device=features.device)
        return Rows(take_nodes(features, (order - (columns - count)[:, None]).clamp(min=0)), count)

    def followed(self, more: "Rows") -> "Rows":
        """These rows, and then others."""
        first, second = self.features.shape[1], more.features.shape[1]
        behind = torch.arange(first + second - 1, -1, -1, device=self.count.device)  # columns counted from the right
        inside = behind < more.count[:, None]
        place = torch.where(inside, first + second - 1 - behind, first - 1 - behind + more.count[:, None])
        joined = take_nodes(torch.cat([self.features, more.features], 1), place.clamp(0, first + second - 1))
        return Rows(joined, self.count + more.count).trimmed()

    def apart(self, halves: int) -> "Rows":
        """These rows where the features of so many halves are side by side: one half behind the other."""
        if halves == 1:
            return self
        return Rows(torch.cat(self.features.chunk(halves, -1)), self.count.repeat(halves))

    def trimmed(self) -> "Rows":
        """Without the columns that no row of the batch has; unchanged off the CPU, where counting is a host sync."""
        if self.count.device.type != "cpu":
            return self
        columns = max(int(self.count.max()), 1)
        return Rows(self.features[:, self.features.shape[1] - columns :], self.count)

    def units(self, known: State | Live) -> Tensor:
        """Their units, the known ones that end with the root: `[batch, column]`; 0 at positions of a condition."""
        columns = self.features.shape[1]
        place = known.known[:, None] - columns + torch.arange(columns, device=known.known.device)
        units = take_nodes(known.history, place.clamp(0, known.history.shape[1] - 1))
        return torch.where(place < 0, 0, units)

    def piece(self, first: int, columns: int) -> tuple[Tensor, Tensor]:
        """Columns `first …`: the places of each row's own ones, moved to the left, `[batch, columns]`; their number."""
        begins = (self.features.shape[1] - self.count).clamp(min=first)
        order = torch.arange(columns, device=self.count.device)
        place = (begins[:, None] + order).clamp(max=self.features.shape[1] - 1)
        return place, (first + columns - begins).clamp(0, columns)
