"""The drafter around a head that steps along paths, whatever the head computes.

A path begins with the root's state, from the last feature alone or from all of them. Features of the prompt and of
accepted units come from the target's own passes, so a path never begins with a guess.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions import take_nodes
from mmspec.core.drafters.growing import grown
from mmspec.core.drafters.shapes import Shape
from mmspec.core.live import Live
from mmspec.core.noise import DraftNoise
from mmspec.core.state import State
from mmspec.core.types import Draft, Step, TargetOutput
from mmspec_text.drafters.heads.drafter import HeadDrafter, HeadOptions
from mmspec_text.drafters.heads.head import Head
from mmspec_text.drafters.heads.inside import Feed, HeadInside, RowsInside
from mmspec_text.drafters.heads.memory import HeadMemory, begun, observed, of_prompt, units_of
from mmspec_text.drafters.heads.pathwise.checkpoint import PathCheckpoint
from mmspec_text.drafters.heads.pathwise.head import PathHead, PrefixHead, Walk


@dataclass(frozen=True)
class PathOptions(HeadOptions):
    """Options of a drafter with such a head."""


class PathDrafter(HeadDrafter):
    """Drafts with a head that steps along paths; no draft is deeper than the head's longest path."""

    stored = PathCheckpoint
    everywhere = True

    def __init__(self, options: PathOptions = PathOptions()) -> None:
        super().__init__(options)

    def depth(self, k: int) -> int:
        return min(k, self.checkpoint.architecture.units)

    def start(self, state: State, inputs: Any) -> "Last | Whole":
        self.join(state, inputs)
        return begin(self.network, self.shape, state)

    @torch.no_grad()
    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        depth = self.depth(k)
        levels = self.shape.levels(depth)
        if levels < 1:
            return Draft.empty(state.root)
        walk = Walk(self.network, state.memory.root(state))
        draft, _, _ = grown(self.shape, state, depth, levels, noise, walk.output(), feed=walk.grow)
        return draft

    def observe(self, state: State, step: Step) -> None:
        state.memory.observe(state, step)

    def inside(self, k: int, state: State) -> HeadInside:
        kind = PathInside if isinstance(state.memory, Last) else PrefixInside
        return kind(self.network, self.shape, self.depth(k), state)

    def fits_inside(self, state: State) -> bool:
        return True


@dataclass
class Last:
    """The last feature alone."""

    head: PathHead
    feature: Tensor  # `[batch, 1, width]`: of the unit before the root

    def root(self, known: State | Live) -> Tensor:
        """The root's state, `[batch, 1, size]`."""
        return self.head.rooted(self.feature, known.root[:, None])

    def observe(self, known: State | Live, step: Step) -> None:
        """Take the features of the units that a round emitted."""
        hidden = step.scores.hidden
        assert hidden is not None, "the target returns hidden states in every round of such a call"
        nodes = torch.nn.functional.pad(step.verdict.path.clamp(min=0), (1, 0))  # the root first
        last = nodes.gather(1, (step.count - 1).clamp(min=0)[:, None])  # the bonus unit has no feature yet
        self.feature = torch.where((step.count > 0)[:, None, None], take_nodes(hidden, last), self.feature)


@dataclass
class Whole:
    """All features, through the head's attention."""

    memory: HeadMemory  # the head's cache

    def root(self, state: State) -> Tensor:
        cache, unread = self.memory.cache, self.memory.unread
        cache.synced(state.host_emitted)
        if unread is not None:
            cache.read(unread, units_of(state, unread))
            self.memory.unread = None
        return cache.states[:, :1]

    def observe(self, state: State, step: Step) -> None:
        observed(self.memory, state, step)


class PathInside(HeadInside):
    """Inside of captured rounds, from the last feature alone."""

    def reserve(self, state: State) -> None:
        with torch.inference_mode(False):
            self._feature = torch.zeros_like(state.memory.feature)
        self._memory = Last(self.head, self._feature)

    def load(self, drafter: Any, state: State) -> None:
        self._feature.copy_(state.memory.feature)

    def unload(self, drafter: Any, state: State) -> None:
        state.memory.feature = self._feature.clone()

    def begun(self, live: Live) -> tuple[TargetOutput, Feed]:
        walk = Walk(self.head, self._memory.root(live))
        return walk.output(), walk.grow

    def observe(self, live: Live, step: Step) -> None:
        self._memory.observe(live, step)
        self._feature.copy_(self._memory.feature)
        self._memory.feature = self._feature


class PrefixInside(RowsInside):
    """Inside of captured rounds, from all features."""

    @staticmethod
    def memory(state: State) -> HeadMemory:
        memory: Whole = state.memory
        return memory.memory

    def begun(self, live: Live) -> tuple[TargetOutput, Feed]:
        self.read(live)
        walk = Walk(self.head, self.cache.states[:, :1])
        return walk.output(), walk.grow


def begin(head: PathHead, shape: Shape, state: State) -> Last | Whole:
    """Begin a call, after prefill.

    Raises:
        ValueError: The target gave no features of the prompt.
    """
    if isinstance(head, PrefixHead):
        rows: Head = head
        return Whole(begun(rows, shape, state))
    return Last(head, of_prompt(state).features[:, -1:])
