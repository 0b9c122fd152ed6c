"""`jacobi` for pictures: the core's Jacobi window, whose new slots are filled with codes of the picture.

Speculative Jacobi decoding (arXiv 2410.01699) and its coupled forms (2510.24211): the target's own last pass is the
draft.
Guarantee: exact under an exact rule, whatever fills new slots, since fillings are point masses.
Knobs: `init` (what fills new slots), `redraw` (`coupled`: what the rule drew is the next draft; `independent`: drawn
anew each round, as first published, of which fewer drafts are accepted).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from mmspec.core.distributions import Distribution
from mmspec.core.drafters.initialisations import EarlierUnit, LeftUnit, RandomUnit
from mmspec.core.drafters.jacobi import Initialisation, Jacobi, Window
from mmspec.core.live import Live
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.kits.pictures.grid_spec import Gridded, GridFromPrompt
from mmspec_image.constraint import constrained_to
from mmspec_image.drafters.grid_fillings import grid_filling, refuse_filling
from mmspec_image.specs import JACOBI

Init = Literal["random", "left", "above", "predict-2d", "previous-image", "preview"]
"""Names of fillings."""


@dataclass(frozen=True)
class JacobiOptions:
    init: Init = field(
        default="above", metadata={"help": "what fills slots that enter the window; exact whatever it is"}
    )
    redraw: Literal["coupled", "independent"] = field(
        default="coupled", metadata={"help": "keep what the rule drew as draft, or draw it anew (SJD)"}
    )


@dataclass(frozen=True)
class Predicted:
    """The code to the left or the one above, chosen by the code above-left, as picture codecs predict.

    Where the code above-left equals the one above, the left code is taken; else the one above.
    """

    grid_width: int  # codes per row

    reach, traceable = 0, True

    def fill(self, live: Live, window: Window, noise: DraftNoise) -> tuple[Tensor, Distribution | None]:
        left, _ = LeftUnit().fill(live, window, noise)
        above, _ = EarlierUnit(self.grid_width).fill(live, window, noise)
        corner, _ = EarlierUnit(self.grid_width + 1).fill(live, window, noise)
        return torch.where(corner == above, left, above), None


class PreviousImage:
    """The codes of the last call's pictures at the same places; in the first call, the codes above."""

    def __init__(self, grid_width: int) -> None:
        self._above = EarlierUnit(grid_width)
        self._now: Live | None = None  # the rows of this call
        self._last: Tensor | None = None

    reach = 0

    def begin(self) -> None:
        """Begin a call: the codes of the one before are known."""
        if self._now is not None:
            self._last, self._now = self._now.history[:, int(self._now.prompt_length) : -1], None

    def fill(self, live: Live, window: Window, noise: DraftNoise) -> tuple[Tensor, Distribution | None]:
        above, _ = self._above.fill(live, window, noise)
        self._now = live
        if self._last is None or self._last.device != above.device:
            return above, None
        last = self._last[torch.arange(len(live.emitted), device=above.device) % len(self._last)]
        place = live.emitted[:, None] + torch.arange(above.shape[1], device=above.device)
        return last.gather(1, place.clamp(max=last.shape[1] - 1)), None


class ImageJacobi(Jacobi):
    """The core's Jacobi window on a target of codes."""

    needs, offers = JACOBI.needs, JACOBI.offers

    def __init__(self, options: JacobiOptions = JacobiOptions()) -> None:
        super().__init__(LeftUnit(), independent=options.redraw == "independent")
        self.options = options
        self._target: GridFromPrompt | None = None

    def bind(self, target: Target) -> None:
        """Take the width of the grid from the target, where `init` needs it.

        Raises:
            ValueError: The target has no grid, or none of its kind, and `init` needs one.
        """
        super().bind(target)
        self._target = target if isinstance(target, GridFromPrompt) and self.options.init != "random" else None
        if self._target is not None:
            refuse_filling(self.options.init)
            return
        if self.options.init == "preview":
            raise ValueError("init='preview' needs a target that writes a preview before the picture; use init=above")
        if not isinstance(target, Gridded) and self.options.init not in ("random", "left"):
            raise ValueError(f"init={self.options.init!r} needs a target with a grid; init=left and init=random do not")
        assert target.vocab is not None
        self.initialisation = self._filling(target.vocab, target.grid if isinstance(target, Gridded) else 1)

    def start(self, state: State, inputs: Any) -> Window | None:
        """Take the tables of neighbours from the grid of the call, where prompt or constraint say the picture's size.

        A drafter keeps one table: calls of several sizes that take turns draft worse, and no less exactly.
        """
        if self._target is not None:
            grid = self._target.grid_of(inputs) or constrained_to(state.warp.processors)
            device = state.emitted.device
            self.initialisation = LeftUnit() if grid is None else grid_filling(grid, self.options.init, device)
        if isinstance(self.initialisation, PreviousImage):
            self.initialisation.begin()
        return super().start(state, inputs)

    def _filling(self, vocab: int, grid: int) -> Initialisation:
        fillings: dict[Init, Callable[[], Initialisation]] = {
            "random": lambda: RandomUnit(vocab),
            "left": LeftUnit,
            "above": lambda: EarlierUnit(grid),
            "predict-2d": lambda: Predicted(grid),
            "previous-image": lambda: PreviousImage(grid),
        }
        return fillings[self.options.init]()
