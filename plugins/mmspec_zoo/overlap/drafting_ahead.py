"""A smaller transformers model that drafts while the target verifies: what `pearl` and `saguaro` have in common.

By default the small model has a process of its own, with one thread of torch; the target's should have as many as there
are other cores. There it is on the target's device and has its dtype, or those that are named. In this process it can
have a thread, and on CUDA a stream.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch

from mmspec.core.protocols import Target
from mmspec.hosts.devices import device_of, refuse_device
from mmspec.hosts.draft_models import drafting_target
from mmspec.hosts.target import TransformersTarget
from mmspec.kits.text.small_model import SmallModelOptions, in_target_ids, load_small_model
from mmspec_zoo.overlap.executors import Serial
from mmspec_zoo.overlap.outcomes import Fan
from mmspec_zoo.overlap.overlapped import OnMiss, Overlapped
from mmspec_zoo.overlap.process import Process
from mmspec_zoo.overlap.streams import Streams


@dataclass(frozen=True)
class AheadOptions(SmallModelOptions):
    """The small model, where it runs, and for how many outcomes of a round it drafts."""

    executor: Literal["process", "streams", "serial"] = field(
        default="process",
        metadata={"help": "where the small model runs: elsewhere, in a thread and CUDA stream, or before each pass"},
    )
    device: str | None = field(
        default=None, metadata={"help": "the device of the small model's process: cpu, cuda:1; default: the target's"}
    )
    dtype: Literal["float32", "bfloat16", "float16"] | None = field(
        default=None, metadata={"help": "the dtype there of a small model that is named; default: the target's"}
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
        if options.device is not None:
            refuse_device(options.device)
        self.options, self._small = options, load_small_model(options, method)
        self._placed: tuple[str, torch.dtype] | None = None
        executor = Streams() if options.executor == "streams" else Serial()  # of a process, until there is a target
        super().__init__(self._small, executor, options.branches, fan, on_miss)

    def bind(self, target: Target) -> None:
        """Map the small model's tokens to the target's, and choose where its process computes.

        Raises:
            ValueError: The vocabularies differ, and the model runs in a process of its own; or as in `draft-model`.
        """
        aside = self.options.executor == "process"
        self.model = in_target_ids(self._small, target, self.options, here=not aside)
        if self.model is not self._small and aside:
            raise ValueError(
                "a draft model with another vocabulary runs in this process: executor=streams, or draft-model"
            )
        super().bind(target)
        if aside:
            self._place(target)

    def _place(self, target: Target) -> None:
        """The process for a target; the one that there is, if it computes in the right place."""
        device, dtype = "cpu", torch.float32
        if isinstance(target, TransformersTarget):
            device, dtype = str(device_of(target.model)), target.model.dtype
        device = self.options.device or device
        dtype = dtype if self.options.dtype is None else getattr(torch, self.options.dtype)
        if self._placed != (device, dtype):
            if isinstance(self.executor, Process):
                self.executor.close()
            self.executor = Process(partial(drafting_target, self.options.model, device, dtype), device=device)
            self._placed = device, dtype
