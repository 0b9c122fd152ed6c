"""Captured drafts of heads that read the rows of every round into a cache: the EAGLE family and multi-token layers.

A call drafts eagerly where a round is unlike the others: after the prompt, with another budget, or when rounds without
a draft left more rows to read. It then uses the same cache.
Of heads that step along paths (Medusa's, Hydra's, MLP speculators) those are captured that begin with the last feature
alone.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mmspec.core.live import bucket
from mmspec.core.noise import DraftNoise
from mmspec.core.state import State
from mmspec.core.types import Draft, TargetOutput
from mmspec.hosts.buffer_cache import BufferCache
from mmspec_text.drafters.heads.cache import HeadCache, empty_layers
from mmspec_text.drafters.heads.captured.draft import CapturedDraft, Plan
from mmspec_text.drafters.heads.pathwise.head import Walk
from mmspec_text.drafters.heads.rows import Rows


class RowsDraft(CapturedDraft):
    """See the module; the call's memory is a `HeadMemory` that has drafted before.

    Attributes:
        cache: The cache of the call that was loaded last, which goes on with it.
    """

    def __init__(self, plan: Plan, state: State) -> None:
        super().__init__(plan, state)
        cache, features = state.memory.cache, state.memory.unread.features
        device, rows, columns = state.emitted.device, state.rows, self.levels + 1
        with torch.inference_mode(False):
            slots = BufferCache(empty_layers(plan.head.depth), cache.slots, bucket(cache.most))
            self.cache = HeadCache(plan.head, rows, cache.most, device, cache.halves, slots)
            self.states = cache.states[:, :1].clone()
            self.features = features.new_zeros(rows, columns, features.shape[2])
            self.units = torch.zeros(rows, columns, dtype=torch.int64, device=device)
            self.count = torch.zeros_like(state.emitted)

    def load(self, state: State) -> None:
        """Take over a call: its cache is copied into the buffers, which it goes on with."""
        super().load(state)
        self._copy(state.memory.cache)
        state.memory.cache = self.cache

    def warm(self, state: State) -> None:
        """Compile. No row is read, so that nothing is committed; what is in the scratch is overwritten."""
        self._copy(state.memory.cache)
        self.count.zero_()
        super().warm(state)

    def takes(self, rows: Rows) -> bool:
        """Whether the draft behind unread rows is one of these."""
        return rows.features.shape[1] <= self.features.shape[1]

    def __call__(self, rows: Rows, units: Tensor, state: State, noise: DraftNoise) -> Draft:
        """Draft for the call that was loaded last; `rows` are unread, and `units` are theirs."""
        columns = self.features.shape[1] - rows.features.shape[1]
        self.features[:, columns:].copy_(rows.features)
        self.units[:, columns:].copy_(units)
        self.count.copy_(rows.count)
        return self.run(state, noise)

    def begun(self) -> tuple[TargetOutput, Callable[[Draft, int], TargetOutput]]:
        self._opened = self.cache.open
        self.cache.read(Rows(self.features, self.count), self.units)
        self.states.copy_(self.cache.states)
        return self.cache.at_root(), self.cache.grow

    def ended(self) -> None:
        """Put the results of the draft back into the buffers, so that the next one finds them there."""
        self._opened.copy_(self.cache.open)
        self.cache.open, self.cache.states = self._opened, self.states

    def _copy(self, other: HeadCache) -> None:
        assert isinstance(self.cache.slots, BufferCache)
        self.cache.slots.load(other.slots)
        self.cache.open.copy_(other.open)
        self.states.copy_(other.states[:, :1])
        self.cache.states = self.states


class PathDraft(CapturedDraft):
    """A captured draft of a head that steps along paths; the memory has the last `feature`, `[batch, 1, width]`."""

    def __init__(self, plan: Plan, state: State) -> None:
        super().__init__(plan, state)
        with torch.inference_mode(False):
            self.feature = torch.zeros_like(state.memory.feature)

    def __call__(self, feature: Tensor, state: State, noise: DraftNoise) -> Draft:
        """Draft behind a feature, for the call that was loaded last."""
        self.feature.copy_(feature)
        return self.run(state, noise)

    def begun(self) -> tuple[TargetOutput, Callable[[Draft, int], TargetOutput]]:
        walk = Walk(self.plan.head, self.plan.head.rooted(self.feature, self.root[:, None]))
        return walk.output(), walk.grow
