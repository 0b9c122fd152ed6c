"""The core's noise interface over the generators of a pipeline call."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from diffusers.utils.torch_utils import randn_tensor
from torch import Tensor

from mmspec.core.noise import Substream


@dataclass(frozen=True)
class GeneratorNoise:
    """Noise of one node per row. Numbers are never repeated, so all lanes are independent of each other."""

    # One generator for all rows, one per row, or None for torch's own
    generator: torch.Generator | Sequence[torch.Generator] | None
    rows: Sequence[int]  # indices of the rows of the batch that numbers are drawn for
    device: torch.device  # device of the numbers

    def substream(self, substream: Substream) -> "GeneratorNoise":
        return self

    def uniform(self) -> Tensor:
        """Uniform numbers in [0, 1), `[rows, 1]` float32."""
        if isinstance(self.generator, Sequence):
            return torch.cat([self._uniform(self.generator[row], 1) for row in self.rows])
        return self._uniform(self.generator, len(self.rows))

    def normal(self, *unit: int) -> Tensor:
        """Standard normal numbers, `[rows, 1, *unit]` float32."""
        generator = self.generator
        if isinstance(generator, Sequence):
            generator = [generator[row] for row in self.rows]
        return randn_tensor((len(self.rows), 1, *unit), generator=generator, device=self.device, dtype=torch.float32)

    def _uniform(self, generator: torch.Generator | None, count: int) -> Tensor:
        home = self.device if generator is None else generator.device
        return torch.rand(count, 1, generator=generator, dtype=torch.float32, device=home).to(self.device)
