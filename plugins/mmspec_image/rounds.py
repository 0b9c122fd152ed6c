"""What a call keeps of its rounds: which of them emitted each code; and codes that were not reached, filled in."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.state import State


@dataclass
class Rounds:
    """Filled after every sync.

    Attributes:
        of: `[row, cell]` int64: the round that emitted each code; 0 is the prefill, -1: none has.
        number: The round that comes next.
        emitted: Codes of all rows together, on the host.
    """

    of: Tensor
    number: int = 0
    emitted: int = 0

    @classmethod
    def begin(cls, state: State, cells: int) -> "Rounds":
        """Of a call that has just been started."""
        return cls(torch.full((state.rows, cells), -1, device=state.emitted.device))

    def step(self, state: State) -> int:
        """Mark what the round emitted; returns how many codes these are."""
        before, self.emitted = self.emitted, sum(state.hosted)
        reached = torch.arange(self.of.shape[1], device=self.of.device) < state.emitted[:, None]
        self.of = torch.where(reached & (self.of < 0), self.number, self.of)
        self.number += 1
        return self.emitted - before

    def codes(self, state: State) -> Tensor:
        """Codes so far, `[row, cell]`; -1 where there is none yet."""
        written = state.history[:, state.given : state.given + self.of.shape[1]]
        return torch.where(self.of < 0, -1, written)


def completed(codes: Tensor, grid: int) -> Tensor:
    """Codes `[row, cell]` whose end is -1, made a whole picture: what is missing repeats the last code above it.

    Where there is none above, it repeats the last code of all. A row without any code is 0 throughout.
    """
    cell = torch.arange(codes.shape[1], device=codes.device)
    last = (codes >= 0).sum(1, keepdim=True) - 1
    above = last - (last - cell) % grid
    source = torch.where(above >= 0, above, last).clamp(min=0)
    return torch.where(codes >= 0, codes, codes.gather(1, source)).clamp(min=0)
