"""The toy whose units depend on all units before, with passes that can be captured, in any dtype."""

from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.testing.toys.cache import UnitsCache, rooted_path
from mmspec.testing.toys.history import HistoryTarget


@dataclass
class HeldUnits:
    """A cache of units whose tensors keep their addresses."""

    units: Tensor  # `[batch, column]`
    length: Tensor  # `[batch]` int64
    drafted: Tensor  # `[batch, node]`: the nodes of the last pass

    def load(self, call: UnitsCache) -> "UnitsCache":
        self.units.copy_(call.units)
        self.length.copy_(call.length)
        return replace(call, units=self.units, length=self.length)

    def fall_back(self) -> str:
        return ""


class FixedHistory(HistoryTarget):
    """A `HistoryTarget` whose passes have one shape, and can be captured."""

    prefers_one_shape = False

    def start_fixed(self, inputs: Any, limit: int, width: int) -> Prefill:
        return self.start(inputs, limit, width)

    def capture_key(self, cache: UnitsCache) -> Hashable:
        return tuple(cache.units.shape), cache.width

    def held(self, cache: UnitsCache, nodes: int) -> HeldUnits:
        drafted = torch.zeros(len(cache.units), cache.width, dtype=torch.int64)
        return HeldUnits(cache.units.clone(), cache.length.clone(), drafted)

    def expect(self, cache: Any, index: TreeIndex) -> None:
        pass

    def ready(self, cache: Any, nodes: int) -> AbstractContextManager[None]:
        return nullcontext()

    def forward(self, cache: Any, draft: Draft) -> TargetOutput:
        if not isinstance(cache, HeldUnits):
            return self.verify(cache, draft)
        cache.drafted.copy_(draft.units)
        return TargetOutput(logits=self.after(cache.units, cache.length, draft))

    def commit(self, cache: Any, path: Tensor, count: Tensor) -> None:
        if not isinstance(cache, HeldUnits):
            return super().commit(cache, path, count)
        nodes = rooted_path(path)
        slot = torch.arange(nodes.shape[1])
        where = torch.where(slot < count[:, None], cache.length[:, None] + slot, cache.units.shape[1] - 1)
        cache.units.scatter_(1, where, cache.drafted.gather(1, nodes))
        cache.length.add_(count)
