"""`frame-jacobi`: the core's window over a frame's codes, filled by what the frame before shows there.

Speculative Jacobi decoding (arXiv 2410.01699) with shared noise (2510.24211): the target's own last pass is the draft.
From frame to frame little changes, so new slots copy the code at the same place of the frame before. All fillings are
point masses: the output is exact, whatever they say.
Knobs: `init` (what enters the window); `k` (the window: longer accepts more a pass, and costs more a pass).
"""

from dataclasses import dataclass, field
from typing import Literal

from mmspec.core.drafters.initialisations import EarlierUnit, LeftUnit, RandomUnit
from mmspec.core.drafters.jacobi import Initialisation, Jacobi
from mmspec.core.protocols import Target
from mmspec_video.plugin import FRAME_JACOBI


@dataclass(frozen=True)
class FrameJacobiOptions:
    """Options of `frame-jacobi`."""

    init: Literal["previous-frame", "above", "left", "random"] = field(
        default="previous-frame", metadata={"help": "what fills slots that enter the window; exact whatever it is"}
    )


class FrameJacobi(Jacobi):
    """The core's window on a target of frames.

    Args:
        options: Filling.
    """

    needs, offers = FRAME_JACOBI.needs, FRAME_JACOBI.offers

    def __init__(self, options: FrameJacobiOptions = FrameJacobiOptions()) -> None:
        super().__init__(LeftUnit())
        self.options = options

    def bind(self, target: Target) -> None:
        """Learn how far frames and their rows are apart.

        Raises:
            ValueError: The target has no frames, and the filling needs them.
        """
        super().bind(target)
        period, columns = getattr(target, "period", None), getattr(target, "columns", None)
        init = self.options.init
        if (period is None and init == "previous-frame") or (columns is None and init == "above"):
            raise ValueError(f"init={init!r} needs a target of frames; init=left and init=random do not")
        assert target.vocab is not None
        self.initialisation = self._filling(target.vocab, period or 1, columns or 1)

    def _filling(self, vocab: int, period: int, columns: int) -> Initialisation:
        return {
            "previous-frame": lambda: EarlierUnit(period, in_prompt=True),
            "above": lambda: EarlierUnit(columns),
            "left": LeftUnit,
            "random": lambda: RandomUnit(vocab),
        }[self.options.init]()
