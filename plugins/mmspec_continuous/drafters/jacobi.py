"""`continuous-jacobi`: the core's Jacobi window over continuous tokens; the target's own last pass is the draft.

Speculative Jacobi decoding (arXiv 2410.01699; with coupled redraws: 2510.24211) for continuous distributions instead of
codes: under `rejection`, what was drawn in the last pass is coupled by reflection with what is drawn now. We found no
publication of it for continuous tokens. New slots are drawn from a neighbour's distribution, for which no network runs.
Guarantee: exact under an exact rule, whatever fills new slots.
Knobs: `init` (whose distribution fills new slots), `redraw` (`coupled`: what the rule drew is the next draft;
`independent`: drawn anew each round, of which fewer drafts are accepted).

`continuous-sets`: such a window, whose first half was drawn in the last pass and is drafted as decided, for the rule
`causal-sets`: a pass reads and emits the set that the last pass drew, and draws the next set, after drafts from a
neighbour's distribution. Decided units carry no distribution, so that an exact rule does not take them for samples:
under such a rule they are refused, and decoding is plain.
Guarantee: the rule's.
Knobs: `k` (a set has k // 2 tokens and a pass emits k // 2 + 1; larger: fewer passes, and tokens that depend less on
each other); `init`.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch

from mmspec.core.distributions import Mixed
from mmspec.core.drafters.initialisations import EarlierDistribution, LeftDistribution
from mmspec.core.drafters.jacobi import Jacobi, resized
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft
from mmspec.kits.pictures.grid_spec import Gridded
from mmspec.registry.options import option
from mmspec_continuous.specs import CONTINUOUS_JACOBI, CONTINUOUS_SETS


@dataclass(frozen=True)
class JacobiOptions:
    init: Literal["left", "above"] = option(
        "left", "whose distribution fills slots that enter the window; exact whatever it is"
    )
    redraw: Literal["coupled", "independent"] = option(
        "coupled", "keep what the rule drew as draft, or draw it anew (SJD)"
    )


class ContinuousJacobi(Jacobi):
    """The core's Jacobi window on a target of continuous tokens."""

    needs, offers = CONTINUOUS_JACOBI.needs, CONTINUOUS_JACOBI.offers

    def __init__(self, options: JacobiOptions = JacobiOptions()) -> None:
        super().__init__(LeftDistribution(), independent=options.redraw == "independent")
        self.options = options

    def bind(self, target: Target) -> None:
        """Take the width of the grid from the target, where `init` needs it; refuses a target without one."""
        super().bind(target)
        if self.options.init == "left":
            return
        if not isinstance(target, Gridded):
            raise ValueError("init='above' needs a target with a grid; init=left does not")
        self.initialisation = EarlierDistribution(target.grid)


@dataclass(frozen=True)
class SetsOptions:
    init: Literal["left", "above"] = option("left", "whose distribution drafts the tokens after which a set is drawn")


class ContinuousSets(ContinuousJacobi):
    needs, offers = CONTINUOUS_SETS.needs, CONTINUOUS_SETS.offers

    def __init__(self, options: SetsOptions = SetsOptions()) -> None:
        super().__init__(JacobiOptions(init=options.init))

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        draft, drawn = super().propose(state, k, noise), resized(state.live, state.memory, k).drawn
        size = (state.budget.width - 1) // 2  # by the widest draft of the call, not by the budget of this round
        decided = drawn & (torch.arange(k, device=drawn.device) < size)
        assert draft.distribution is not None  # new slots are drawn from a distribution
        return replace(draft, distribution=Mixed(draft.distribution, ~decided, draft.units))
