"""`jacobi` for pictures: the core's Jacobi window, whose new slots are filled with codes of the picture.

Speculative Jacobi decoding (arXiv 2410.01699) and its coupled forms (2510.24211): the target's own last pass is the
draft.
Guarantee: exact under an exact rule, whatever fills new slots, since fillings are point masses.
Knobs: `init` (what fills new slots), `redraw` (`coupled`: what the rule drew is the next draft; `independent`: drawn
anew each round, as first published, of which fewer drafts are accepted).
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from mmspec.core.distributions import Distribution
from mmspec.core.drafters.initialisations import EarlierUnit, LeftUnit, RandomUnit
from mmspec.core.drafters.jacobi import Initialisation, Jacobi, Window
from mmspec.core.live import Live
from mmspec.core.noise import DraftNoise
from mmspec.core.once import known as known_already
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.kits.pictures.grid_spec import Gridded, GridFromPrompt, GridSpec
from mmspec.registry.options import option
from mmspec_image.constraint import constrained_to
from mmspec_image.specs import JACOBI

Init = Literal["random", "left", "above"]  # names of fillings


@dataclass(frozen=True)
class JacobiOptions:
    init: Init = option("above", "what fills slots that enter the window; exact whatever it is")
    redraw: Literal["coupled", "independent"] = option(
        "coupled", "keep what the rule drew as draft, or draw it anew (SJD)"
    )


@dataclass(frozen=True, eq=False)
class Neighbour:
    """The code of a neighbouring cell, if it is known or drawn; else a second neighbour's; else the last unit."""

    # `[table, length]` int64: the numbers of the neighbours of every unit, -1: none. The first one counts.
    tables: Tensor

    reach, traceable = 0, True

    def fill(self, live: Live, window: Window, noise: DraftNoise) -> tuple[Tensor, Distribution | None]:
        units, _ = LeftUnit().fill(live, window, noise)
        slot = torch.arange(units.shape[1], device=units.device)
        for table in self.tables.flip(0):
            source = table[(live.emitted[:, None] + slot).clamp(max=len(table) - 1)]
            known = live.history.gather(1, (live.prompt_length + source).clamp(0, live.history.shape[1] - 1))
            within = (source - live.emitted[:, None]).clamp(0, len(slot) - 1)
            is_known = source < live.emitted[:, None]
            codes = torch.where(is_known, known, window.units.gather(1, within))
            units = torch.where((source >= 0) & (is_known | window.drawn.gather(1, within)), codes, units)
        return units, None


@known_already
def grid_filling(grid: GridSpec, init: str, device: torch.device) -> Initialisation:
    """The filling of a name for a grid; the same one for equal grids, so that their calls share captured rounds."""
    return Neighbour(torch.stack([grid.above if init == "above" else grid.left, grid.left]).to(device))


class ImageJacobi(Jacobi):
    """The core's Jacobi window on a target of codes."""

    needs, offers = JACOBI.needs, JACOBI.offers

    def __init__(self, options: JacobiOptions = JacobiOptions()) -> None:
        super().__init__(LeftUnit(), independent=options.redraw == "independent")
        self.options = options
        self._target: GridFromPrompt | None = None

    def bind(self, target: Target) -> None:
        """Take the width of the grid from the target, where `init` needs it; refuses a target without one."""
        super().bind(target)
        init = self.options.init
        self._target = target if isinstance(target, GridFromPrompt) and init != "random" else None
        if self._target is not None or init == "left":
            return
        if init == "random":
            assert target.vocab is not None
            self.initialisation = RandomUnit(target.vocab)
        elif isinstance(target, Gridded):
            self.initialisation = EarlierUnit(target.grid)
        else:
            raise ValueError(f"init={init!r} needs a target with a grid; init=left and init=random do not")

    def start(self, state: State, inputs: Any) -> Window | None:
        """Take the tables of neighbours from the grid of the call, where prompt or constraint say the picture's size;
        it keeps one: calls of several sizes that take turns draft worse, and no less exactly.
        """
        if self._target is not None:
            grid = self._target.grid_of(inputs) or constrained_to(state.warp.processors)
            device = state.emitted.device
            self.initialisation = LeftUnit() if grid is None else grid_filling(grid, self.options.init, device)
        return super().start(state, inputs)
