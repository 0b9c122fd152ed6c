"""A transformers target that drafts for itself in passes without some of its sub-layers (`mmspec.hosts.sublayers`)."""

from dataclasses import dataclass
from typing import Any

from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, TargetOutput
from mmspec.hosts.sublayers import SubLayers
from mmspec.hosts.target import TransformersTarget


@dataclass
class ReadShare:
    """A call's drafting passes, as shares of passes over all of the target's weights."""

    passes: float = 0.0  # their sum


class SelfDrafting:
    """Shortened passes of a target over its own caches.

    Args:
        target: The target.
        method: The name of the method, for messages.

    Raises:
        ValueError: The target has no layers that can be left out, or a state that a draft would change.
    """

    def __init__(self, target: Target, method: str) -> None:
        if not isinstance(target, TransformersTarget):
            raise ValueError(f"{method} leaves out layers of a transformers model; {type(target).__name__} is none")
        if target.anatomy.ops:
            raise ValueError(
                f"{method} drafts in the target's own cache, whose recurrent layers cannot take a draft back; use a "
                "draft model, token-recycling or suffix"
            )
        self.target, self.sublayers = target, SubLayers(target.anatomy)
        self.layers = len(self.sublayers.layers)

    def verify(self, gone: frozenset[int], state: State, cache: Any, draft: Draft, first: int) -> TargetOutput:
        """The target's pass without the sub-layers `gone`; counted in the call's report.

        Args:
            gone: Numbers of sub-layers.
            state: The call, whose `memory` is a `ReadShare`.
            cache: Its cache.
            draft: As in `Target.verify`.
            first: As in `Target.verify`.
        """
        share: ReadShare = state.memory
        share.passes += 1 - len(gone) / (2 * self.layers)
        state.report.inner_passes = round(share.passes)
        with self.sublayers.left_out(gone):
            return self.target.verify(cache, draft, first)
