"""`synthetic`: accepts drafted nodes at a given rate, whatever the target's distribution. For benchmarks only.

Guarantee: none; every report says so.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from mmspec.core.manifest import SYNTHETIC
from mmspec.core.noise import Round, Substream
from mmspec.core.rules.rule import DraftsAfresh, walk_where
from mmspec.core.types import Draft, Scores, Verdict
from mmspec.registry.options import option


@dataclass(frozen=True)
class SyntheticOptions:
    rate: Annotated[float, Field(ge=0, le=1)] = option(
        0.7, "chance of each drafted node, given that its parent was accepted"
    )


class Synthetic(DraftsAfresh):
    """Accept with probability `rate` per node."""

    exactness: str = SYNTHETIC.exactness
    needs, offers = SYNTHETIC.needs, SYNTHETIC.offers

    def __init__(self, options: SyntheticOptions = SyntheticOptions()) -> None:
        self._rate = options.rate

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        noise = round.fresh(draft.nodes)
        kept = noise.substream(Substream.COIN).uniform()[:, 1:] < self._rate
        drawn = scores.distribution.draw(noise)
        return walk_where(draft, kept, drawn, scores.distribution.units(drawn))
