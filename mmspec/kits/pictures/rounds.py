"""The round that emitted each unit of a call, also as colours; the picture of a call that was stopped, filled in."""

from dataclasses import dataclass, field

import torch
from PIL import Image
from torch import Tensor

from mmspec.core.distributions.distribution import take_nodes, where_nodes
from mmspec.core.state import State
from mmspec.kits.pictures.grid_spec import GridSpec


@dataclass
class Rounds:
    """The rounds of a call, recorded after every host sync."""

    layout: GridSpec  # the units of a picture
    number: int = 0  # the number of the next round
    emitted: int = 0  # units that all rows have emitted together
    # `[row, unit]` int64: the round that emitted each unit; 0 is the prefill, -1: not emitted yet
    of: Tensor = field(init=False)

    def step(self, state: State) -> int:
        """Record a round; returns how many units it emitted."""
        if not self.number:
            self.of = torch.full((state.rows, self.layout.length), -1, device=state.emitted.device)
        before, self.emitted = self.emitted, state.report.emitted
        reached = torch.arange(self.of.shape[1], device=self.of.device) < state.emitted[:, None]
        self.of = torch.where(reached & (self.of < 0), self.number, self.of)
        self.number += 1
        return self.emitted - before

    @property
    def of_cells(self) -> Tensor:
        """The part of `of` that is the picture, `[row, cell]`."""
        return self.of[:, self.layout.picture.to(self.of.device)]

    def picture(self, state: State) -> Tensor:
        """The picture's units, `[row, cell, *unit]` in raster order; missing ones are filled in."""
        units = self.units(state)[:, self.layout.picture.to(self.of.device)]
        return completed(units, self.of_cells >= 0, self.layout.stages[-1].width)

    def units(self, state: State) -> Tensor:
        """Units so far, `[row, unit, *unit]`; where there is none yet, -1 among codes and NaN among vectors."""
        written = state.history[:, state.prompt_length : state.prompt_length + self.of.shape[1]]
        missing = float("nan") if written.is_floating_point() else -1
        units = written.new_full((*self.of.shape, *written.shape[2:]), missing)
        begun = written.shape[1]  # the history may have no room yet for cells that are far ahead
        units[:, :begun] = where_nodes(self.of[:, :begun] >= 0, written, units[:, :begun])
        return units


def completed(units: Tensor, there: Tensor, width: int) -> Tensor:
    """Units `[row, cell, *unit]` of rows that ended early, as whole pictures of so many cells a row: a missing unit
    (`there [row, cell]` is False) repeats the last unit above it.

    Where there is none above, it repeats the row's last unit. A row without any unit is 0 throughout.
    """
    cell = torch.arange(units.shape[1], device=units.device)
    last = there.sum(1, keepdim=True) - 1
    above = last - (last - cell) % width
    source = torch.where(above >= 0, above, last).clamp(min=0)
    filled = take_nodes(units, torch.where(there, cell, source))
    return where_nodes((last >= 0).expand_as(there), filled, torch.zeros_like(filled))


RAMP = ("440154", "472d7b", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725")
"""Even steps of viridis, dark to light, from the first round to the last; brightness alone tells them apart, too."""
CELL = 16  # least pixels per side of a cell
TINT = 0.65  # share of the round's colour in a pixel; the rest is the picture in grey
SHADE = 0.75  # brightness of every other round, so that cells of one round are seen as a group


def traced(picture: Image.Image, rounds: Tensor) -> Image.Image:
    """The square picture in grey under the colours of its `rounds [grid, grid]`; cells that no round reached (-1) are
    darker grey.
    """
    grid = len(rounds)
    side = picture.width * -(-CELL * grid // picture.width)
    large = picture.convert("L").resize((side, side), Image.Resampling.NEAREST)
    grey = torch.frombuffer(bytearray(large.tobytes()), dtype=torch.uint8).view(side, side, 1).float()
    tint = colours(rounds).repeat_interleave(side // grid, 0).repeat_interleave(side // grid, 1)
    shown = (1 - TINT) * grey + TINT * tint
    return Image.fromarray(shown.round().to(torch.uint8).numpy(), "RGB")


def colours(rounds: Tensor) -> Tensor:
    """`[grid, grid, 3]` in 0 … 255; black where there is no round."""
    ramp = torch.tensor([list(bytes.fromhex(colour)) for colour in RAMP]).float()
    rounds = rounds.cpu()
    place = rounds.clamp(min=0) / rounds.max().clamp(min=1) * (len(ramp) - 1)
    low = place.long().clamp(max=len(ramp) - 2)
    share = (place - low)[..., None]
    mixed = ramp[low] * (1 - share) + ramp[low + 1] * share
    light = torch.where(rounds < 0, 0, torch.where(rounds % 2 == 0, 1, SHADE))
    return mixed * light[..., None]
