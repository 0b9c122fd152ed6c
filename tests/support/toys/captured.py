"""The toy whose units depend on all units before, with passes that can be captured, in any dtype."""

from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.testing.toys.cache import UnitsCache, rooted_path
from mmspec.testing.toys.history import HistoryTarget


class CapturedHistory:
    """A captured pass of `FixedHistory` over units of its own.

    Args:
        target: The target.
        cache: The cache of a call like those to come.
    """

    def __init__(self, target: HistoryTarget, cache: UnitsCache) -> None:
        self.target = target
        self.units, self.length = cache.units.clone(), cache.length.clone()
        self.drafted = torch.zeros(len(self.units), cache.width, dtype=torch.int64)

    def load(self, cache: UnitsCache) -> None:
        self.units.copy_(cache.units)
        self.length.copy_(cache.length)
        cache.units, cache.length = self.units, self.length

    def ready(self) -> AbstractContextManager[None]:
        return nullcontext()

    def verify(self, draft: Draft) -> TargetOutput:
        self.drafted.copy_(draft.units)
        return TargetOutput(logits=self.target.after(self.units, self.length, draft))

    def commit(self, path: Tensor, count: Tensor) -> None:
        nodes = rooted_path(path)
        slot = torch.arange(nodes.shape[1])
        where = torch.where(slot < count[:, None], self.length[:, None] + slot, self.units.shape[1] - 1)
        self.units.scatter_(1, where, self.drafted.gather(1, nodes))
        self.length.add_(count)


class FixedHistory(HistoryTarget):
    """A `HistoryTarget` whose passes have one shape, and can be captured."""

    prefers_one_shape = False

    def start_fixed(self, inputs: Any, limit: int, width: int) -> Prefill:
        return self.start(inputs, limit, width)

    def capture_key(self, cache: UnitsCache) -> Hashable:
        return tuple(cache.units.shape), cache.width

    def captured_pass(self, cache: UnitsCache, nodes: int, index: TreeIndex | None) -> CapturedHistory:
        return CapturedHistory(self, cache)
