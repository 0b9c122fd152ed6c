"""`continuous-jacobi`: the core's Jacobi window over continuous tokens; the target's own last pass is the draft.

Speculative Jacobi decoding (arXiv 2410.01699; with coupled redraws: 2510.24211) for continuous distributions instead of
codes: under `rejection`, what was drawn in the last pass is coupled by reflection with what is drawn now. We found no
publication of it for continuous tokens. New slots are drawn from a neighbour's distribution, for which no network runs.
Guarantee: exact under an exact rule, whatever fills new slots.
Knobs: `init` (whose distribution fills new slots), `redraw` (`coupled`: what the rule drew is the next draft;
`independent`: drawn anew each round, of which fewer drafts are accepted).
"""

from dataclasses import dataclass, field
from typing import Literal

from mmspec.core.drafters.initialisations import EarlierDistribution, LeftDistribution
from mmspec.core.drafters.jacobi import Jacobi
from mmspec.core.protocols import Target
from mmspec.kits.pictures.grid_spec import Gridded
from mmspec_continuous.specs import CONTINUOUS_JACOBI


@dataclass(frozen=True)
class JacobiOptions:
    init: Literal["left", "above"] = field(
        default="left", metadata={"help": "whose distribution fills slots that enter the window; exact whatever it is"}
    )
    redraw: Literal["coupled", "independent"] = field(
        default="coupled", metadata={"help": "keep what the rule drew as draft, or draw it anew (SJD)"}
    )


class ContinuousJacobi(Jacobi):
    """The core's Jacobi window on a target of continuous tokens."""

    needs, offers = CONTINUOUS_JACOBI.needs, CONTINUOUS_JACOBI.offers

    def __init__(self, options: JacobiOptions = JacobiOptions()) -> None:
        super().__init__(LeftDistribution(), independent=options.redraw == "independent")
        self.options = options

    def bind(self, target: Target) -> None:
        """Take the width of the grid from the target, where `init` needs it.

        Raises:
            ValueError: The target has no grid, and `init` needs one.
        """
        super().bind(target)
        if self.options.init == "left":
            return
        if not isinstance(target, Gridded):
            raise ValueError("init='above' needs a target with a grid; init=left does not")
        self.initialisation = EarlierDistribution(target.grid)
