"""Initialisations for new slots of a Jacobi window that copy a unit: point masses.

`mmspec.core.drafters.neighbours` draws from a distribution instead.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions import Distribution
from mmspec.core.drafters.jacobi import Window
from mmspec.core.noise import Noise, Substream
from mmspec.core.state import State


@dataclass(frozen=True)
class RandomUnit:
    """Any unit id, uniformly."""

    vocab: int  # number of unit ids

    reach = 0

    def fill(self, state: State, window: Window, noise: Noise) -> tuple[Tensor, Distribution | None]:
        # Under `match`, `noise` also decides the verdict; so these units use fresh noise in a substream of their own.
        own = state.source.fresh(state.emitted, 1, window.units.shape[1]).substream(Substream.DRAFT)
        return (own.uniform() * self.vocab).long(), None


@dataclass(frozen=True)
class LeftUnit:
    """The last unit that is known or drawn, repeated."""

    reach = 0

    def fill(self, state: State, window: Window, noise: Noise) -> tuple[Tensor, Distribution | None]:
        sequence = torch.cat([state.root[:, None], window.units], 1)
        last = window.drawn.sum(1, keepdim=True)  # drawn slots come first
        return sequence.gather(1, last).expand(-1, window.units.shape[1]), None


@dataclass(frozen=True)
class EarlierUnit:
    """The unit a fixed distance earlier, if it is known or drawn; else the last one (`LeftUnit`).

    Of a grid in raster order, `distance` units earlier is the unit above; of a sequence of equally long parts, the unit
    at the same place of the part before.
    """

    distance: int  # units from the copied unit to its copy
    in_prompt: bool = False  # whether units of the prompt may be copied, too

    reach = 0

    def fill(self, state: State, window: Window, noise: Noise) -> tuple[Tensor, Distribution | None]:
        left, _ = LeftUnit().fill(state, window, noise)
        slot = torch.arange(window.units.shape[1], device=left.device)
        index = state.known[:, None] + slot - self.distance  # in `history`
        known = state.history.gather(1, index.clamp(min=0, max=state.history.shape[1] - 1))
        within = (slot - self.distance).clamp(min=0).expand_as(left)  # in the window
        in_window = (slot >= self.distance) & window.drawn.gather(1, within)
        is_known = index < state.known[:, None]
        earlier = torch.where(is_known, known, window.units.gather(1, within))
        first = state.pads[:, None] if self.in_prompt else state.prompt_length
        return torch.where((index >= first) & (is_known | in_window), earlier, left), None
