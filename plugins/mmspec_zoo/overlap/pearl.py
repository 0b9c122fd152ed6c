"""`pearl`: a smaller model drafts while the target verifies (PEARL, arXiv 2408.11850), in a process of its own.

See `mmspec_zoo.overlap.overlapped`, which says what is PEARL's here and what is not needed. The paper drafts for one
outcome of a round, `branches=1`; the others here are those that the small model thinks likeliest next.
If nobody names `k`, it is how many passes of the small model one of the target lasts, γ = round(t_v / t_d), as in the
authors' code: each model's pass over one unit is timed where it runs, once, before the first call.
Guarantee: `match`'s, also where the process dies or does not answer.
Knobs: `k` (γ: units that are drafted in the time of a pass); `branches` (more hit more often, and cost in every pass of
the small model); `executor` (`streams`: a thread of this process, on CUDA a stream; `serial` hides no time, and is for
comparison).
"""

from mmspec.bench.timing import step_seconds
from mmspec.core.protocols import Target
from mmspec_zoo.overlap.overlapped import AheadOptions, DraftsAhead
from mmspec_zoo.specs import PEARL

SHORTEST, LONGEST = 2, 32
"""Units of a draft whose length is measured: the first is decided by the pass that it is drafted beside, so that of one
nothing would be left to verify; and of more than 32 hardly any is accepted, however fast the small model is.
"""


class Pearl(DraftsAhead):
    """Drafts ahead; a row whose round had another outcome decodes one unit without a draft."""

    needs, offers = PEARL.needs, PEARL.offers

    def __init__(self, options: AheadOptions = AheadOptions()) -> None:
        super().__init__(options, PEARL.name, None, "plain")

    def paced_length(self, target: Target) -> int | None:
        """The number of passes of the small model that one of the target lasts."""
        self.bind(target)  # which begins the small model's process
        draft = self.executor.step_seconds(self.model)
        return None if draft is None else min(max(round(step_seconds(target) / draft), SHORTEST), LONGEST)
