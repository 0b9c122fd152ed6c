"""`frame-jacobi`: the core's Jacobi window over a frame's codes, filled from the frame before.

Speculative Jacobi decoding (arXiv 2410.01699) with shared noise (2510.24211): the target's own last pass is the draft.
Little changes from frame to frame, so new slots copy the code at the same place of the frame before. All fillings are
point masses.
Guarantee: none is needed; the output is exact whatever the fillings are.
Knobs: `init` (what enters the window); `k` (the window: a longer one accepts more per pass, and costs more per pass).
"""

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from mmspec.core.drafters.initialisations import EarlierUnit, LeftUnit, RandomUnit
from mmspec.core.drafters.jacobi import Initialisation, Jacobi
from mmspec.core.protocols import Target
from mmspec.registry.options import option
from mmspec_video.specs import FRAME_JACOBI


@dataclass(frozen=True)
class FrameJacobiOptions:
    init: Literal["previous-frame", "above", "left", "random"] = option(
        "previous-frame", "what fills slots that enter the window; exact whatever it is"
    )


@runtime_checkable
class FrameLayout(Protocol):
    """A target whose sequences are frames of units in raster order."""

    period: int  # units from one frame to the next
    columns: int  # units of a frame's row


class FrameJacobi(Jacobi):
    """The core's window on a target of frames."""

    needs, offers = FRAME_JACOBI.needs, FRAME_JACOBI.offers

    def __init__(self, options: FrameJacobiOptions = FrameJacobiOptions()) -> None:
        super().__init__(LeftUnit())
        self.options = options

    def bind(self, target: Target) -> None:
        """Make the filling for the target's frame layout; refuses a target without frames."""
        super().bind(target)
        self.initialisation = self._filling(target)

    def _filling(self, target: Target) -> Initialisation:
        init = self.options.init
        if init == "left":
            return LeftUnit()
        if init == "random":
            assert target.vocab is not None
            return RandomUnit(target.vocab)
        if not isinstance(target, FrameLayout):
            raise ValueError(f"init={init!r} needs a target of frames; init=left and init=random do not")
        if init == "previous-frame":
            return EarlierUnit(target.period, in_prompt=True)
        return EarlierUnit(target.columns)
