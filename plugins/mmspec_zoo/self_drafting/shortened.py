"""The target drafts for itself: in passes that leave something of it out, over its own cache.

No second model is loaded and no second cache is kept: the draft's keys lie in the scratch slots of the call's own
cache, where the target's pass over the draft writes anew. So a drafter of this kind has no memory of a call, and never
rolls back.
Guarantee: the rule's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from mmspec.core.drafters.growing import grown
from mmspec.core.drafters.shapes import Level, Shape
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, TargetOutput
from mmspec.hosts.target import TransformersTarget
from mmspec_zoo.sublayers import SubLayers


@dataclass
class ReadShare:
    """A call's drafting passes, as shares of passes over all of the target's weights."""

    passes: float = 0.0  # their sum


class SelfDrafting:
    """Shortened passes of a target over its own caches; refuses a target with a state that a draft would change."""

    def __init__(self, target: Target, method: str) -> None:
        if not isinstance(target, TransformersTarget):
            raise ValueError(f"{method} leaves out layers of a transformers model; {type(target).__name__} is none")
        if target.model_info.ops:
            raise ValueError(
                f"{method} drafts in the target's own cache, whose recurrent layers cannot take a draft back; use a "
                "draft model, token-recycling or suffix"
            )
        self.target, self.sublayers = target, SubLayers(target.model_info)
        self.layers = len(self.sublayers.layers)

    def verify(self, gone: frozenset[int], state: State, cache: Any, draft: Draft, first: int) -> TargetOutput:
        """The target's pass without the sub-layers `gone`; counted in the report of a call with a `ReadShare`."""
        share: ReadShare = state.memory
        share.passes += 1 - len(gone) / (2 * self.layers)
        state.report.inner_passes = round(share.passes)
        with self.sublayers.left_out(gone):
            return self.target.verify(cache, draft, first)

    def draft(
        self,
        gone: frozenset[int],
        state: State,
        shape: Shape,
        k: int,
        noise: DraftNoise,
        enough: Callable[[Level], bool] | None = None,
    ) -> Draft:
        """A draft by passes without the sub-layers `gone`; `enough` says behind every level whether it is the last."""
        levels = shape.levels(k)
        if levels < 1:
            return Draft.empty(state.root)
        feed = partial(self.verify, gone, state, state.cache)
        output = feed(Draft.alone(state.root), 0)
        return grown(shape, state, k, levels, noise, output, feed=feed, enough=enough)[0]
