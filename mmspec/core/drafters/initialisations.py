"""Fillings for new slots of a Jacobi window that copy a unit: point masses (`neighbours` draws from a distribution
instead).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions import Distribution
from mmspec.core.drafters.jacobi import Window
from mmspec.core.noise import Lane, Noise
from mmspec.core.state import State


@dataclass(frozen=True)
class RandomUnit:
    """Any unit id, uniformly.

    Attributes:
        vocab: Number of unit ids.
    """

    vocab: int

    reach = 0

    def fill(self, state: State, window: Window, noise: Noise) -> tuple[Tensor, Distribution | None]:
        # The target's own noise must not choose the draft and then judge it, so these come from a lane of their own.
        own = state.round().source.fresh(state.emitted, 1, window.units.shape[1]).lane(Lane.DRAFT)
        return (own.uniform() * self.vocab).long(), None


@dataclass(frozen=True)
class LeftUnit:
    """The last unit that is known or drawn: repeats what stands to the left."""

    reach = 0

    def fill(self, state: State, window: Window, noise: Noise) -> tuple[Tensor, Distribution | None]:
        sequence = torch.cat([state.root[:, None], window.units], 1)
        last = window.drawn.sum(1, keepdim=True)  # drawn slots come first
        return sequence.gather(1, last).expand(-1, window.units.shape[1]), None


@dataclass(frozen=True)
class AboveUnit:
    """The unit one row of the grid up, where it is known or drawn; else the one to the left.

    Attributes:
        grid_width: Units per row of the grid.
    """

    grid_width: int

    reach = 0

    def fill(self, state: State, window: Window, noise: Noise) -> tuple[Tensor, Distribution | None]:
        left, _ = LeftUnit().fill(state, window, noise)
        slot = torch.arange(window.units.shape[1], device=left.device)
        position = state.emitted[:, None] + slot - self.grid_width
        known = state.history.gather(1, (state.given + position).clamp(min=0, max=state.history.shape[1] - 1))
        inside = (slot - self.grid_width).clamp(min=0).expand_as(left)
        in_window = (slot >= self.grid_width) & window.drawn.gather(1, inside)
        above = torch.where(position < state.emitted[:, None], known, window.units.gather(1, inside))
        usable = (position >= 0) & ((position < state.emitted[:, None]) | in_window)
        return torch.where(usable, above, left), None


@dataclass(frozen=True)
class PreviousFrame:
    """The unit at the same place of the frame before, in the prompt too; where there is none, the one to the left.

    Attributes:
        period: Units from one frame to the next.
    """

    period: int

    reach = 0

    def fill(self, state: State, window: Window, noise: Noise) -> tuple[Tensor, Distribution | None]:
        left, _ = LeftUnit().fill(state, window, noise)
        slot = torch.arange(window.units.shape[1], device=left.device)
        place = state.known[:, None] + slot - self.period
        known = state.history.gather(1, place.clamp(min=0, max=state.history.shape[1] - 1))
        inside = (slot - self.period).clamp(min=0).expand_as(left)
        in_window = (slot >= self.period) & window.drawn.gather(1, inside)
        before = torch.where(place < state.known[:, None], known, window.units.gather(1, inside))
        usable = (place >= state.pads[:, None]) & ((place < state.known[:, None]) | in_window)
        return torch.where(usable, before, left), None
