"""Fillings for new slots of a Jacobi window that are drawn from a neighbour's law: genuine drafts, for any law.

A copied unit is a point mass, which no continuous target ever draws. So a new slot takes the law that a neighbour was
drawn from, and draws from it with noise of its own: given the neighbour, that law is known, and the draft is a sample
of exactly the law that it reports. No model is evaluated: a denoising chain takes over the neighbour's means (its noise
is not copied: a copy would have no law, given the neighbour).
Exact under every rule that takes windows. Knobs: which neighbour; images of smooth rows like `above`, most like `left`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.drafters.jacobi import Window
from mmspec.core.laws import Law
from mmspec.core.noise import Noise
from mmspec.core.state import State


@dataclass(frozen=True)
class LeftLaw:
    """The law of the last unit that was drawn in the window; where there is none, that of the root.

    Attributes:
        reach: The root's law is wanted.
    """

    reach: int = 1

    def fill(self, state: State, window: Window, noise: Noise) -> tuple[Tensor, Law | None]:
        return _drawn(window, _left(window, self.reach), noise)


@dataclass(frozen=True)
class AboveLaw:
    """The law of the unit one row of the grid up, where it was drawn; else of the one to the left.

    Attributes:
        grid_width: Units per row of the grid.
    """

    grid_width: int

    @property
    def reach(self) -> int:
        """Laws of emitted units that are looked at."""
        return self.grid_width

    def fill(self, state: State, window: Window, noise: Noise) -> tuple[Tensor, Law | None]:
        # Slot j stands at `emitted + j`, and the laws of the last row come first: entry j is the one above it.
        slot = torch.arange(window.units.shape[1], device=window.drawn.device).expand_as(window.drawn)
        inside = slot >= self.grid_width
        drawn = window.drawn.gather(1, (slot - self.grid_width).clamp(min=0))
        there = torch.where(inside, drawn, state.emitted[:, None] + slot >= self.grid_width)
        return _drawn(window, torch.where(there, slot, _left(window, self.reach)), noise)


def _left(window: Window, reach: int) -> Tensor:
    """Where the last law stands among those of the past and the window's drawn slots: `[batch, k]`."""
    last = reach - 1 + window.drawn.sum(1, keepdim=True)  # drawn slots come first
    return last.expand_as(window.drawn)


def _drawn(window: Window, source: Tensor, noise: Noise) -> tuple[Tensor, Law]:
    """Draws from the laws at `source [batch, k]`, counted through the past and then the window."""
    assert window.past is not None, "no unit was drawn yet that a law could be taken from"
    laws = window.past if window.law is None else type(window.past).cat([window.past, window.law])
    law = laws.take(source)
    draws = law.draw(noise)
    return law.units(draws), law.having(draws)
