"""The pass of a transformers model as functions of tensors, over a cache of its own: `core.capabilities.CapturedPass`.

Nothing in it depends on how far the rows are, so that torch traces it once and a CUDA graph can hold it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, TargetOutput
from mmspec.hosts.block_masks import FLEX
from mmspec.hosts.buffer_cache import BufferCache
from mmspec.hosts.flex_attention import fits
from mmspec.hosts.masks import NAME
from mmspec.hosts.passes import Passes
from mmspec.hosts.tree_op import Branches


class CapturedTransformersPass:
    """A pass over a fixed number of nodes.

    Args:
        passes: Runs the model.
        slots: An empty cache that becomes this pass's own.
        nodes: Nodes of every pass.
        index: The tree of every pass; None: each pass brings its own.

    Attributes:
        attention: The name of the attention function; None until a call was loaded.
    """

    def __init__(self, passes: Passes, slots: BufferCache, nodes: int, index: TreeIndex | None) -> None:
        self.passes, self.slots, self.nodes = passes, slots, nodes
        self.attention: str | None = None
        self._branches = None if index is None else Branches.of(index, slots.state_dtype)
        if self._branches is not None and slots.recurrent:
            assert self._branches.levels is not None  # listed now, on the host; torch would trace it in every pass

    def lone(self) -> "CapturedTransformersPass":
        index = TreeIndex.static([-1], self.slots.length.device)
        lone = CapturedTransformersPass(self.passes, self.slots, 1, index)
        lone.attention = self.attention
        return lone

    def load(self, cache: Any) -> None:
        """Copy a call's cache into this one; the call goes on with this one."""
        self.slots.load(cache.slots)
        cache.slots = self.slots
        if self.attention is None:
            self.attention = FLEX if fits(self.passes, self.slots) else NAME

    def fall_back(self) -> str:
        before, self.attention = self.attention, NAME
        return "attention reads all slots that are allocated" if before == FLEX else ""

    @contextmanager
    def ready(self) -> Iterator[None]:
        passes, slots = self.passes, self.slots
        assert self.attention is not None, "a captured pass runs before a call was loaded"
        slots.hold_still()
        units = len(slots.length) * self.nodes
        with passes.ready(self.attention), passes.experts.decoding(units, slots.length.device.type, True):
            yield

    def verify(self, draft: Draft) -> TargetOutput:
        slots, index = self.slots, draft.index
        slots.scratch = not index.is_chain
        slots.open_static(draft.nodes)
        geometry = self.passes.geometry(slots, index, 0, False)
        arguments = self.passes.arguments(slots, index.depth, draft.valid, 0)
        branches = self._branches if self._branches is not None else Branches.of(index, self.slots.state_dtype)
        return TargetOutput(logits=self.passes.forward(slots, draft.units, geometry, arguments, branches))

    def commit(self, path: Tensor, count: Tensor) -> None:
        self.slots.commit_static(path, count)
