"""`continuous-sets`: a Jacobi window whose first half was drawn in the last pass and is drafted as decided.

For the rule `causal-sets`, which accepts what is decided: a pass reads and emits the set that the last pass drew, and
draws the next set, after drafts from a neighbour's distribution. Decided units carry no distribution, so that an exact
rule does not take them for samples: under such a rule they are refused, and decoding is plain.
Guarantee: the rule's.
Knobs: `k` (a set has k // 2 tokens and a pass emits k // 2 + 1; larger: fewer passes, and tokens that depend less on
each other); `init`, as in `continuous-jacobi`.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from mmspec.core.distributions import Mixed
from mmspec.core.drafters.jacobi import resized
from mmspec.core.noise import DraftNoise
from mmspec.core.state import State
from mmspec.core.types import Draft
from mmspec_continuous.drafters.jacobi import ContinuousJacobi, JacobiOptions
from mmspec_continuous.specs import CONTINUOUS_SETS


@dataclass(frozen=True)
class SetsOptions:
    init: Literal["left", "above"] = field(
        default="left", metadata={"help": "whose distribution drafts the tokens after which a set is drawn"}
    )


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
