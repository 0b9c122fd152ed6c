"""`continuous-sets`: a Jacobi window whose first half was drawn in the last pass, and is handed over as decided.

For the rule `set-parallel`, which lets what is decided stand: a pass reads and emits the set that the last one drew,
and draws the next, after drafts from a neighbour's distribution. Decided units have no distribution here, so that no
exact rule can take them for draws: under such rules they are refused, and decoding is plain.
Guarantee: none of its own; see the rule.
Knobs: `k`: sets have k // 2 tokens, so that a pass emits k // 2 + 1 (larger: fewer passes, and tokens that know less of
one another); `init`, as in `continuous-jacobi`.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from mmspec.core.distributions import Mixed
from mmspec.core.noise import DraftNoise
from mmspec.core.state import State
from mmspec.core.types import Draft
from mmspec_continuous.drafters.jacobi import ContinuousJacobi, JacobiOptions
from mmspec_continuous.plugin import CONTINUOUS_SETS


@dataclass(frozen=True)
class SetsOptions:
    """Options of `continuous-sets`."""

    init: Literal["left", "above"] = field(
        default="left", metadata={"help": "whose distribution drafts the tokens after which a set is drawn"}
    )


class ContinuousSets(ContinuousJacobi):
    """See the module.

    Args:
        options: Filling.
    """

    needs, offers = CONTINUOUS_SETS.needs, CONTINUOUS_SETS.offers

    def __init__(self, options: SetsOptions = SetsOptions()) -> None:
        super().__init__(JacobiOptions(init=options.init))
        self._size = 0

    def width(self, k: int) -> int:
        self._size = k // 2  # of the calls that now begin
        return super().width(k)

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        draft, drawn = super().propose(state, k, noise), self._resized(state, k).drawn
        decided = drawn & (torch.arange(k, device=drawn.device) < self._size)
        assert draft.distribution is not None  # fillings are drawn
        return replace(draft, distribution=Mixed(draft.distribution, ~decided, draft.units))
