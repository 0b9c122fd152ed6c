"""Fillings of a Jacobi window for pictures of any grid: codes of neighbouring cells, by the tables of a `GridSpec`.

They are point masses, so that any filling is exact.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions import Distribution
from mmspec.core.drafters.initialisations import LeftUnit
from mmspec.core.drafters.jacobi import Initialisation, Window
from mmspec.core.live import Live
from mmspec.core.noise import DraftNoise
from mmspec.core.once import known as known_already
from mmspec.kits.pictures.grid_spec import GridSpec


@dataclass(frozen=True, eq=False)
class Neighbour:
    """The code of a neighbouring cell, if it is known or drawn; else a second neighbour's; else the last unit."""

    # `[table, length]` int64: the numbers of the neighbours of every unit, -1: none. The first one counts.
    tables: Tensor

    reach, traceable = 0, True

    def fill(self, live: Live, window: Window, noise: DraftNoise) -> tuple[Tensor, Distribution | None]:
        units, _ = LeftUnit().fill(live, window, noise)
        for table in self.tables.flip(0):
            code, found = looked_up(table, live, window)
            units = torch.where(found, code, units)
        return units, None


@dataclass(frozen=True, eq=False)
class Predicted:
    """The left code where the code above-left equals the one above, else the one above, as picture codecs predict."""

    # `[3, length]` int64: the numbers of the neighbours to the left, above, and above to the left, -1: none
    tables: Tensor

    reach, traceable = 0, True

    def fill(self, live: Live, window: Window, noise: DraftNoise) -> tuple[Tensor, Distribution | None]:
        last, _ = LeftUnit().fill(live, window, noise)
        left, above, corner = (
            torch.where(found, code, last) for code, found in (looked_up(table, live, window) for table in self.tables)
        )
        return torch.where(corner == above, left, above), None


def looked_up(table: Tensor, live: Live, window: Window) -> tuple[Tensor, Tensor]:
    """The neighbours of the window's units in a table `[length]`: codes `[batch, k]`, and where there are any."""
    slot = torch.arange(window.units.shape[1], device=table.device)
    place = (live.emitted[:, None] + slot).clamp(max=len(table) - 1)
    source = table[place]
    known = live.history.gather(1, (live.prompt_length + source).clamp(0, live.history.shape[1] - 1))
    within = (source - live.emitted[:, None]).clamp(0, len(slot) - 1)
    is_known = source < live.emitted[:, None]
    codes = torch.where(is_known, known, window.units.gather(1, within))
    return codes, (source >= 0) & (is_known | window.drawn.gather(1, within))


FILLINGS = ("left", "above", "predict-2d", "preview")
"""Names of the fillings that every grid has; `preview` for pictures with a preview."""


def refuse_filling(init: str) -> None:
    """Refuse a filling that has no meaning where every prompt may ask for another size.

    Raises:
        ValueError: Says which ones have.
    """
    if init not in FILLINGS:
        raise ValueError(f"init={init!r} has no meaning for pictures of any size; use {', '.join(FILLINGS)} or random")


@known_already
def grid_filling(grid: GridSpec, init: str, device: torch.device) -> Initialisation:
    """The filling of a name for a grid; the same one for equal grids, so that their calls share captured rounds.

    Raises:
        ValueError: The filling needs a preview, and there is none.
    """
    if init == "preview" and len(grid.stages) < 2:
        raise ValueError("init='preview' needs a preview before the picture, and this prompt asks for none")
    if init == "predict-2d":
        return Predicted(torch.stack([grid.left, grid.above, grid.corner]).to(device))
    first = {"left": grid.left, "above": grid.above, "preview": grid.preview}[init]
    return Neighbour(torch.stack([first, grid.left]).to(device))
