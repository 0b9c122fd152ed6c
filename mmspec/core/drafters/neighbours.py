"""Fillings for new slots of a Jacobi window that are drawn from a neighbour's distribution: genuine drafts, for any
distribution.

A copied unit is a point mass, which no continuous target ever draws. So a new slot takes the distribution that a
neighbour was drawn from, and draws from it with noise of its own: given the neighbour, that distribution is known, and
the draft is a sample of exactly the distribution that it reports. No model is evaluated: a denoising chain takes over
the neighbour's means (its noise is not copied: a copy would have no distribution, given the neighbour).
Exact under every rule that takes windows. Knobs: which neighbour; images of smooth rows like `above`, most like `left`.
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
    """The distribution of the last unit that was drawn in the window; where there is none, that of the root.

    Attributes:
        reach: The root's distribution is wanted.
    """

    reach: int = 1

    def fill(self, state: State, window: Window, noise: Noise) -> tuple[Tensor, Distribution | None]:
        return _drawn(window, _left(window, self.reach), noise)


@dataclass(frozen=True)
class AboveDistribution:
    """The distribution of the unit one row of the grid up, where it was drawn; else of the one to the left.

    Attributes:
        grid_width: Units per row of the grid.
    """

    grid_width: int

    @property
    def reach(self) -> int:
        """Distributions of emitted units that are looked at."""
        return self.grid_width

    def fill(self, state: State, window: Window, noise: Noise) -> tuple[Tensor, Distribution | None]:
        # Slot j stands at `emitted + j`, and the distributions of the last row come first: entry j is the one above it.
        slot = torch.arange(window.units.shape[1], device=window.drawn.device).expand_as(window.drawn)
        inside = slot >= self.grid_width
        drawn = window.drawn.gather(1, (slot - self.grid_width).clamp(min=0))
        there = torch.where(inside, drawn, state.emitted[:, None] + slot >= self.grid_width)
        return _drawn(window, torch.where(there, slot, _left(window, self.reach)), noise)


def _left(window: Window, reach: int) -> Tensor:
    """Where the last distribution stands among those of the past and the window's drawn slots: `[batch, k]`."""
    last = reach - 1 + window.drawn.sum(1, keepdim=True)  # drawn slots come first
    return last.expand_as(window.drawn)


def _drawn(window: Window, source: Tensor, noise: Noise) -> tuple[Tensor, Distribution]:
    """Draws from the distributions at `source [batch, k]`, counted through the past and then the window."""
    assert window.past is not None, "no unit was drawn yet that a distribution could be taken from"
    distributions = (
        window.past if window.distribution is None else type(window.past).cat([window.past, window.distribution])
    )
    distribution = distributions.take(source)
    draws = distribution.draw(noise)
    return distribution.units(draws), distribution.with_draws(draws)
