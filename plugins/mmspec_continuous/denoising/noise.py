"""The core's noise, out of a pipeline call's own generators."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from diffusers.utils.torch_utils import randn_tensor
from torch import Tensor

from mmspec.core.noise import Substream


@dataclass(frozen=True)
class GeneratorNoise:
    """One node a row; every number is new, so that lanes are disjoint by themselves.

    Attributes:
        generator: One for all rows, one a row, or None: torch's own.
        rows: The rows of the batch that are asked for, on the host.
        device: Where the numbers go.
    """

    generator: torch.Generator | Sequence[torch.Generator] | None
    rows: Sequence[int]
    device: torch.device

    def substream(self, substream: Substream) -> "GeneratorNoise":
        return self

    def uniform(self) -> Tensor:
        """`[rows, 1]`."""
        if isinstance(self.generator, Sequence):
            return torch.cat([self._uniform(self.generator[row], 1) for row in self.rows])
        return self._uniform(self.generator, len(self.rows))

    def normal(self, *unit: int) -> Tensor:
        """`[rows, 1, *unit]`."""
        given = self.generator
        mine = [given[row] for row in self.rows] if isinstance(given, Sequence) else given
        return randn_tensor((len(self.rows), 1, *unit), generator=mine, device=self.device, dtype=torch.float32)

    def _uniform(self, generator: torch.Generator | None, count: int) -> Tensor:
        home = self.device if generator is None else generator.device
        return torch.rand(count, 1, generator=generator, dtype=torch.float32, device=home).to(self.device)
