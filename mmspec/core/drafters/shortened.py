"""The target drafts for itself: in passes that leave something of it out, over its own cache.

No second model is loaded and no second cache is kept: the draft's keys lie in the scratch slots of the call's own
cache, where the target's pass over the draft writes anew. So a drafter of this kind has no memory of a call, and never
rolls back.
Guarantee: as the rule has it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from mmspec.core.drafters.growing import grown
from mmspec.core.drafters.shapes import Level, Shape
from mmspec.core.noise import DraftNoise
from mmspec.core.state import State
from mmspec.core.types import Draft, TargetOutput

Pass = Callable[[Any, Draft, int], TargetOutput]
"""A pass over a rooted draft, as `Target.verify`, with the call's cache."""


def drafted_by(
    shortened: Pass,
    state: State,
    shape: Shape,
    k: int,
    noise: DraftNoise,
    enough: Callable[[Level], bool] | None = None,
) -> Draft:
    """A draft by shortened passes of the call's own target."""
    levels = shape.levels(k)
    if levels < 1:
        return Draft.empty(state.root)
    feed = partial(shortened, state.cache)
    output = feed(Draft.alone(state.root), 0)
    return grown(shape, state, k, levels, noise, output, 1, feed, enough)[0]
