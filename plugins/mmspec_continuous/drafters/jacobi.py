"""`continuous-jacobi`: the core's window over continuous tokens, the target's own last pass as draft.

Speculative Jacobi decoding (arXiv 2410.01699; coupled: 2510.08994), for distributions instead of codes: under
`rejection` what was drawn in the last pass is coupled by reflection with what is drawn now. We found no publication of
it for continuous tokens. New slots are drawn from the distribution of a neighbour, for which no network runs.
Guarantee: exact, whatever the filling.
Knobs: `init` (whose distribution), `redraw` (`coupled`: what the rule drew stays as draft; `independent`: drawn anew
each round, which keeps fewer drafts alive).
"""

from dataclasses import dataclass, field
from typing import Literal

from mmspec.core.drafters.jacobi import Jacobi
from mmspec.core.drafters.neighbours import AboveDistribution, LeftDistribution
from mmspec.core.protocols import Target
from mmspec.kits.pictures.capabilities import Gridded


@dataclass(frozen=True)
class JacobiOptions:
    """Options of `continuous-jacobi`."""

    init: Literal["left", "above"] = field(
        default="left", metadata={"help": "whose distribution fills slots that enter the window; exact whatever it is"}
    )
    redraw: Literal["coupled", "independent"] = field(
        default="coupled", metadata={"help": "keep what the rule drew as draft, or draw it anew (SJD)"}
    )


class ContinuousJacobi(Jacobi):
    """The core's window on a target of continuous tokens.

    Args:
        options: Filling and redraw.
    """

    needs = frozenset({"redraw", "continuous"})

    def __init__(self, options: JacobiOptions = JacobiOptions()) -> None:
        super().__init__(LeftDistribution(), independent=options.redraw == "independent")
        self.options = options

    def bind(self, target: Target) -> None:
        """Learn the grid.

        Raises:
            ValueError: The target has none, and the filling needs it.
        """
        super().bind(target)
        if self.options.init == "left":
            return
        if not isinstance(target, Gridded):
            raise ValueError("init='above' needs a target with a grid; init=left does not")
        self.initialisation = AboveDistribution(target.grid)
