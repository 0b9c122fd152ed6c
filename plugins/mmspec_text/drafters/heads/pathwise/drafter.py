"""The drafter around a head that steps along paths, whatever the head computes.

A path begins with the root's state, from the last feature alone or from all of them. Features of the prompt and of
accepted units come from the target's own passes, so a path never begins with a guess.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions import take_nodes
from mmspec.core.live import Live
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Step, TargetOutput
from mmspec.hosts.target import TransformersTarget
from mmspec_text.drafters.heads.cache import Feed, HeadCache
from mmspec_text.drafters.heads.drafter import HeadDrafter, HeadOptions
from mmspec_text.drafters.heads.head import Head
from mmspec_text.drafters.heads.inside import HeadInside, RowsInside
from mmspec_text.drafters.heads.memory import HeadMemory, begun, of_prompt
from mmspec_text.drafters.heads.pathwise.head import PathCheckpoint, PathHead, PrefixHead, Walk


@dataclass(frozen=True)
class PathOptions(HeadOptions):
    """Options of a drafter with such a head."""


class PathDrafter(HeadDrafter):
    """Drafts with a head that steps along paths; no draft is deeper than the head's longest path."""

    stored = PathCheckpoint

    def depth(self, k: int) -> int:
        return min(k, self.checkpoint.architecture.units)

    def bind(self, target: Target) -> None:
        assert isinstance(target, TransformersTarget)
        if self.checkpoint.stored is not None and target.model is not self._tried:
            lent = target.lend()
            self.checkpoint.stored.compare(lent.embedding, lent.output)
        super().bind(target)

    def start(self, state: State, inputs: Any) -> "Last | HeadMemory":
        self.join(state, inputs)
        if isinstance(self.network, PrefixHead):
            rows: Head = self.network
            return begun(rows, state, self.shape.fed(state.budget.k), kind=PrefixCache)
        return Last(self.network, of_prompt(state).features[:, -1:])

    def inside(self, k: int, state: State) -> HeadInside:
        kind = PathInside if isinstance(state.memory, Last) else RowsInside
        return kind(self.network, self.shape, self.depth(k), state)


@dataclass
class Last:
    """The last feature alone."""

    head: PathHead
    feature: Tensor  # `[batch, 1, width]`: of the unit before the root

    def opened(self, known: State | Live) -> tuple[TargetOutput, Feed]:
        """The beginning of the next draft, as `HeadCache.opened` says."""
        return walked_from(self.head, self.head.rooted(self.feature, known.root[:, None]))

    def observe(self, known: State | Live, step: Step) -> None:
        """Take the features of the units that a round emitted."""
        hidden = step.scores.hidden
        assert hidden is not None, "the target returns hidden states in every round of such a call"
        nodes = torch.nn.functional.pad(step.verdict.path.clamp(min=0), (1, 0))  # the root first
        last = nodes.gather(1, (step.count - 1).clamp(min=0)[:, None])  # the bonus unit has no feature yet
        self.feature = torch.where((step.count > 0)[:, None, None], take_nodes(hidden, last), self.feature)


class PrefixCache(HeadCache):
    """All features, through the head's attention."""

    head: Any

    def opened(self, root: Tensor) -> tuple[TargetOutput, Feed]:
        return walked_from(self.head, self.states[:, :1])


def walked_from(head: PathHead, states: Tensor) -> tuple[TargetOutput, Feed]:
    """The beginning of a draft behind roots with these states, `[batch, 1, size]`."""
    walk = Walk(head, states)
    return walk.output(), walk.grow


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
        return self._memory.opened(live)

    def observe(self, live: Live, step: Step) -> None:
        self._memory.observe(live, step)
        self._feature.copy_(self._memory.feature)
        self._memory.feature = self._feature
