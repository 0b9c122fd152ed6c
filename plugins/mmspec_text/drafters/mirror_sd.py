"""`mirror-sd`: a smaller model drafts for what an early exit of the target says about the round (arXiv 2510.13161).

See `mmspec.core.drafters.mirrored`, which says what of the paper is here. The exit is the target's own norm and output
layer behind `exit` layers, as the model was trained: a model whose early layers can be read says more.
Guarantee: that of `match`, also where the process dies or does not answer.
Knobs: `k`; `exit` (earlier leaves the small model more time, later says more); `branches` (the paper's κ: units
that are drafted for at every node of the draft); `executor` (as of `pearl`).
"""

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from mmspec.core.drafters.mirrored import EarlyExit, Mirrored
from mmspec.core.protocols import Target
from mmspec.hosts.early_exit import LayerExit
from mmspec.hosts.target import TransformersTarget
from mmspec_text.drafters.drafting_ahead import AheadOptions, DraftsAhead
from mmspec_text.specs import MIRROR_SD


@dataclass(frozen=True)
class MirrorOptions(AheadOptions):
    """Options of `mirror-sd`."""

    branches: int = field(default=2, metadata={"help": "units at every node of the draft that are drafted for"})
    exit: Annotated[int, Field(ge=1)] | None = field(
        default=None, metadata={"help": "layers of the target before its exit; default: half of them"}
    )


class MirrorSD(DraftsAhead, Mirrored):
    """Drafts for what the target's exit says; a row whose round had another outcome waits for its draft.

    Args:
        options: The small model, where it runs, the exit, and how many of its units count.

    Raises:
        ValueError: No model was named, or it cannot be loaded.
    """

    needs, offers = MIRROR_SD.needs, MIRROR_SD.offers

    def __init__(self, options: MirrorOptions = MirrorOptions()) -> None:
        super().__init__(options, MIRROR_SD.name, None, "draft")
        self._layer = options.exit

    def exit_of(self, target: Target) -> EarlyExit:
        """The target's own output layer behind one of its layers.

        Raises:
            ValueError: The target is no transformers model, or it has no such exit.
        """
        if not isinstance(target, TransformersTarget):
            raise ValueError(f"mirror-sd reads the layers of a transformers model; {type(target).__name__} is none")
        layers = self._layer if self._layer is not None else max(1, target.layers() // 2)
        return LayerExit(target, layers)
