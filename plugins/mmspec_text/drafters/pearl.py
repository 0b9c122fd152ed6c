"""`pearl`: a smaller model drafts while the target verifies (PEARL, arXiv 2408.11850), in a process of its own.

See `mmspec.core.drafters.overlapped`, which says what is PEARL's here and what is not needed. The process has one
thread of torch; this one should have as many as there are other cores.
Guarantee: that of `match`, also where the process dies or does not answer.
Knobs: `k` (γ: units that are drafted in the time of a pass); `executor` (`serial` drafts in this process, and hides no
time: for comparison).
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from mmspec.core.drafters.overlapped import Overlapped
from mmspec.core.overlap.executors import Serial
from mmspec.core.overlap.process import Process
from mmspec.core.protocols import Target
from mmspec.hosts.draft_models import drafting_target
from mmspec_text.drafters.small_model import SmallModelOptions, in_target_ids, load_small_model
from mmspec_text.specs import PEARL


@dataclass(frozen=True)
class PearlOptions(SmallModelOptions):
    """Options of `pearl`."""

    executor: Literal["process", "serial"] = field(
        default="process", metadata={"help": "where the small model runs; serial: here, before the target's pass"}
    )


class Pearl(Overlapped):
    """Drafts ahead with a smaller transformers model.

    Args:
        options: The small model, and where it runs.

    Raises:
        ValueError: No model was named, or it cannot be loaded.
    """

    needs, offers = PEARL.needs, PEARL.offers
    example = "mmspec_text.example:pearl"

    def __init__(self, options: PearlOptions = PearlOptions()) -> None:
        self.options, self._small = options, load_small_model(options, "pearl")
        alone = options.executor == "process"
        super().__init__(self._small, Process(partial(drafting_target, options.model)) if alone else Serial())

    def bind(self, target: Target) -> None:
        """Map the small model's tokens to the target's.

        Raises:
            ValueError: The vocabularies differ, and the model runs in a process of its own; or as in `draft-model`.
        """
        self.model = in_target_ids(self._small, target, self.options)
        if self.model is not self._small and self.options.executor == "process":
            raise ValueError(
                "a draft model with another vocabulary runs in this process: executor=serial, or draft-model"
            )
        super().bind(target)
