"""A smaller transformers model that drafts while the target verifies: what `pearl` and `saguaro` have in common.

By default the small model has a process of its own, with one thread of torch; the target's should have as many as there
are other cores. In this process it can have a thread, and on CUDA a stream.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from mmspec.core.drafters.overlapped import OnMiss, Overlapped
from mmspec.core.overlap.executors import Executor, Serial
from mmspec.core.overlap.outcomes import Fan
from mmspec.core.overlap.process import Process
from mmspec.core.overlap.streams import Streams
from mmspec.core.protocols import Target
from mmspec.hosts.draft_models import drafting_target
from mmspec_text.drafters.small_model import SmallModelOptions, in_target_ids, load_small_model


@dataclass(frozen=True)
class AheadOptions(SmallModelOptions):
    """The small model, where it runs, and for how many outcomes of a round it drafts."""

    executor: Literal["process", "streams", "serial"] = field(
        default="process",
        metadata={"help": "where the small model runs: elsewhere, in a thread and CUDA stream, or before each pass"},
    )
    branches: int = field(default=1, metadata={"help": "outcomes of a round that are drafted for"})


class DraftsAhead(Overlapped):
    """Drafts ahead with a smaller transformers model.

    Args:
        options: The small model, where it runs, and the number of outcomes.
        method: Whose options they are.
        fan: Chooses the outcomes.
        on_miss: As in `Overlapped`.

    Raises:
        ValueError: No model was named, or it cannot be loaded.
    """

    def __init__(self, options: AheadOptions, method: str, fan: Fan | None, on_miss: OnMiss) -> None:
        self.options, self._small = options, load_small_model(options, method)
        super().__init__(self._small, _executor(options), options.branches, fan, on_miss)

    def bind(self, target: Target) -> None:
        """Map the small model's tokens to the target's.

        Raises:
            ValueError: The vocabularies differ, and the model runs in a process of its own; or as in `draft-model`.
        """
        self.model = in_target_ids(self._small, target, self.options)
        if self.model is not self._small and self.options.executor == "process":
            raise ValueError(
                "a draft model with another vocabulary runs in this process: executor=streams, or draft-model"
            )
        super().bind(target)


def _executor(options: AheadOptions) -> Executor:
    if options.executor == "process":
        return Process(partial(drafting_target, options.model))
    return Streams() if options.executor == "streams" else Serial()
