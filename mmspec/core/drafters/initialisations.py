"""Initialisations for new slots of a Jacobi window: copies of a unit, or draws from an earlier unit's distribution.

A copied unit is a point mass, which a continuous target never draws. There a new slot takes the distribution of an
earlier unit, and draws from it with noise of its own: given that unit, the distribution is known, and the draft is a
sample of exactly the distribution that it reports. No model is evaluated: a denoising chain reuses the earlier unit's
means. (Copying the noise, too, would leave the draft without a distribution, given that unit.)
Exact under every rule that takes windows. Knob: which earlier unit; images of smooth rows like the one above, most
like the last one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions import Distribution
from mmspec.core.drafters.jacobi import Window
from mmspec.core.live import Live
from mmspec.core.noise import DraftNoise


@dataclass(frozen=True)
class RandomUnit:
    """Any unit id, uniformly."""

    vocab: int  # number of unit ids

    reach, traceable = 0, True

    def fill(self, live: Live, window: Window, noise: DraftNoise) -> tuple[Tensor, Distribution | None]:
        # Under `match`, `noise` also decides the verdict; so these units use fresh noise.
        return (noise.fresh(1, window.units.shape[1]).uniform() * self.vocab).long(), None


@dataclass(frozen=True)
class LeftUnit:
    """The last unit that is known or drawn, repeated."""

    reach, traceable = 0, True

    def fill(self, live: Live, window: Window, noise: DraftNoise) -> tuple[Tensor, Distribution | None]:
        sequence = torch.cat([live.root[:, None], window.units], 1)
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

    reach, traceable = 0, True

    def fill(self, live: Live, window: Window, noise: DraftNoise) -> tuple[Tensor, Distribution | None]:
        left, _ = LeftUnit().fill(live, window, noise)
        slot = torch.arange(window.units.shape[1], device=left.device)
        index = live.known[:, None] + slot - self.distance  # in `history`
        known = live.history.gather(1, index.clamp(min=0, max=live.history.shape[1] - 1))
        within = (slot - self.distance).clamp(min=0).expand_as(left)  # in the window
        in_window = (slot >= self.distance) & window.drawn.gather(1, within)
        is_known = index < live.known[:, None]
        earlier = torch.where(is_known, known, window.units.gather(1, within))
        first = live.pads[:, None] if self.in_prompt else live.prompt_length
        return torch.where((index >= first) & (is_known | in_window), earlier, left), None


@dataclass(frozen=True)
class LeftDistribution:
    """The distribution of the last unit that was drawn in the window; the root's if there is none."""

    reach: int = 1  # 1, the root's distribution

    def fill(self, live: Live, window: Window, noise: DraftNoise) -> tuple[Tensor, Distribution | None]:
        return _drawn(window, _left(window, self.reach), noise)


@dataclass(frozen=True)
class EarlierDistribution:
    """The distribution of the unit a fixed distance earlier, if it was drawn; else the last one's."""

    distance: int  # units from the earlier unit to the new one; the width of a grid in raster order: the unit above

    @property
    def reach(self) -> int:
        """Number of emitted units whose distributions are needed."""
        return self.distance

    def fill(self, live: Live, window: Window, noise: DraftNoise) -> tuple[Tensor, Distribution | None]:
        # Slot j is position `emitted + j`; entry j of past and window together is `distance` positions before it.
        slot = torch.arange(window.units.shape[1], device=window.drawn.device).expand_as(window.drawn)
        drawn = window.drawn.gather(1, (slot - self.distance).clamp(min=0))
        emitted = live.emitted[:, None] + slot >= self.distance
        exists = torch.where(slot >= self.distance, drawn, emitted)
        return _drawn(window, torch.where(exists, slot, _left(window, self.reach)), noise)


def _left(window: Window, reach: int) -> Tensor:
    """Index of the last drawn unit among past and window: `[batch, k]`."""
    last = reach - 1 + window.drawn.sum(1, keepdim=True)  # drawn slots come first
    return last.expand_as(window.drawn)


def _drawn(window: Window, source: Tensor, noise: DraftNoise) -> tuple[Tensor, Distribution]:
    """Draws from the distributions at `source [batch, k]`, an index into the past followed by the window."""
    assert window.past is not None, "no unit with a distribution was drawn yet"
    parts = [window.past] if window.distribution is None else [window.past, window.distribution]
    distribution: Distribution = type(window.past).cat(parts).take(source)
    draws = distribution.draw(noise.chain(1, source.shape[1]))
    return distribution.units(draws), distribution.with_draws(draws)
