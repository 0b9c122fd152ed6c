"""`pearl`: a smaller model drafts while the target verifies (PEARL, arXiv 2408.11850), in a process of its own.

See `mmspec_zoo.overlap.overlapped`, which says what is PEARL's here and what is not needed. The paper drafts for one
outcome of a round, `branches=1`; the others here are those that the small model thinks likeliest next.
Guarantee: `match`'s, also where the process dies or does not answer.
Knobs: `k` (γ: units that are drafted in the time of a pass); `branches` (more hit more often, and cost in every pass of
the small model); `executor` (`streams`: a thread of this process, on CUDA a stream; `serial` hides no time, and is for
comparison).
"""

from mmspec_zoo.overlap.overlapped import AheadOptions, DraftsAhead
from mmspec_zoo.specs import PEARL


class Pearl(DraftsAhead):
    """Drafts ahead; a row whose round had another outcome decodes one unit without a draft."""

    needs, offers = PEARL.needs, PEARL.offers

    def __init__(self, options: AheadOptions = AheadOptions()) -> None:
        super().__init__(options, PEARL.name, None, "plain")
