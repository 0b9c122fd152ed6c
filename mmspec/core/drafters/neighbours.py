"""Initialisations for new slots of a Jacobi window that draw from an earlier unit's distribution: for any family.

A copied unit is a point mass, which a continuous target never draws. So a new slot takes the distribution of an earlier
unit, and draws from it with noise of its own: given that unit, the distribution is known, and the draft is a sample of
exactly the distribution that it reports. No model is evaluated: a denoising chain reuses the earlier unit's means.
(Copying the noise, too, would leave the draft without a distribution, given that unit.)
Exact under every rule that takes windows. Knob: which earlier unit; images of smooth rows like the one above, most
like the last one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions import Distribution
from mmspec.core.drafters.jacobi import Window
from mmspec.core.noise import Noise
from mmspec.core.state import State


@dataclass(frozen=True)
class LeftDistribution:
    """The distribution of the last unit that was drawn in the window, or else of the root."""

    reach: int = 1  # 1, the root's distribution

    def fill(self, state: State, window: Window, noise: Noise) -> tuple[Tensor, Distribution | None]:
        return _drawn(window, _left(window, self.reach), noise)


@dataclass(frozen=True)
class EarlierDistribution:
    """The distribution of the unit a fixed distance earlier, if it was drawn; else of the last one."""

    distance: int  # units from the earlier unit to the new one; the width of a grid in raster order: the unit above

    @property
    def reach(self) -> int:
        """Number of emitted units whose distributions are needed."""
        return self.distance

    def fill(self, state: State, window: Window, noise: Noise) -> tuple[Tensor, Distribution | None]:
        # Slot j is position `emitted + j`; entry j of past and window together is `distance` positions before it.
        slot = torch.arange(window.units.shape[1], device=window.drawn.device).expand_as(window.drawn)
        drawn = window.drawn.gather(1, (slot - self.distance).clamp(min=0))
        emitted = state.emitted[:, None] + slot >= self.distance
        exists = torch.where(slot >= self.distance, drawn, emitted)
        return _drawn(window, torch.where(exists, slot, _left(window, self.reach)), noise)


def _left(window: Window, reach: int) -> Tensor:
    """Index of the last drawn unit among past and window: `[batch, k]`."""
    last = reach - 1 + window.drawn.sum(1, keepdim=True)  # drawn slots come first
    return last.expand_as(window.drawn)


def _drawn(window: Window, source: Tensor, noise: Noise) -> tuple[Tensor, Distribution]:
    """Draws from the distributions at `source [batch, k]`, an index into the past followed by the window."""
    assert window.past is not None, "no unit with a distribution was drawn yet"
    parts = [window.past] if window.distribution is None else [window.past, window.distribution]
    distribution: Distribution = type(window.past).cat(parts).take(source)
    draws = distribution.draw(noise)
    return distribution.units(draws), distribution.with_draws(draws)
