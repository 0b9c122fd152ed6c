"""`saguaro`: a smaller model prepares drafts for many outcomes of the round that the target is verifying.

Speculative speculative decoding (Kumar et al., arXiv 2603.03251). While the target verifies, the small model ranks what
may come at every node of the pending draft, and drafts on from `branches` outcomes (accepted length, next unit), spread
over the lengths by a geometric fan-out. If the round ends in one of them, its draft is there at once; if not, the round
waits for a new draft, the paper's just-in-time backup.
The published code, where the backup is off, accepts fillers by equality with the target's argmax also at T > 0, which
is biased; under `match` a filler has no rule of its own. Its other part, a drafter that is sampled so that residuals
fall into the cache, is for rules with ratios, and is not needed either: there is no residual.
Guarantee: `match`'s, also where the process dies or does not answer.
Knobs: `k`; `branches` (more hit more often, and cost in every pass of the small model); `acceptance` and `power` (see
`mmspec_zoo.overlap.outcomes.Geometric`); `executor` (as of `pearl`).
"""

from dataclasses import dataclass

from mmspec.registry.options import option
from mmspec_zoo.overlap.outcomes import Geometric
from mmspec_zoo.overlap.overlapped import AheadOptions, DraftsAhead
from mmspec_zoo.specs import SAGUARO


@dataclass(frozen=True)
class SaguaroOptions(AheadOptions):
    branches: int = option(8, "outcomes of a round that are drafted for")
    acceptance: float = option(0.8, "how often the fan takes a unit to be accepted")
    power: float = option(1.0, "a fan of F outcomes after a length misses with F^-power")


class Saguaro(DraftsAhead):
    """Drafts for many outcomes; a row whose round had another one waits for its draft."""

    needs, offers = SAGUARO.needs, SAGUARO.offers

    def __init__(self, options: SaguaroOptions = SaguaroOptions()) -> None:
        fan = Geometric(options.acceptance, options.power)
        super().__init__(options, SAGUARO.name, fan, "draft")
