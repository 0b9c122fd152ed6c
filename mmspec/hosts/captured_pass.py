"""The pass of a transformers model as functions of tensors, over a cache of its own: `core.capabilities.CapturedPass`.

Nothing in it depends on how far the rows are, so that torch traces it once and a CUDA graph can hold it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, TargetOutput
from mmspec.hosts.block_masks import FLEX
from mmspec.hosts.buffer_cache import BufferCache
from mmspec.hosts.features import Reading
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
        boundaries: The boundaries of layers at which the pass returns states.

    Attributes:
        attention: The name of the attention function; None until a call was loaded.
    """

    def __init__(
        self, passes: Passes, slots: BufferCache, nodes: int, index: TreeIndex | None, boundaries: Sequence[int] = ()
    ) -> None:
        self.passes, self.slots, self.nodes = passes, slots, nodes
        self._reading = Reading(passes.model_info, boundaries)
        self.attention: str | None = None
        self._branches = None if index is None else Branches.of(index, slots.state_dtype)
        if self._branches is not None and slots.recurrent:
            assert self._branches.levels is not None  # listed now, on the host; torch would trace it in every pass

    def lone(self) -> "CapturedTransformersPass":
        return self.over(TreeIndex.static([-1], self.slots.length.device))

    def over(self, index: TreeIndex) -> "CapturedTransformersPass":
        """The pass over the nodes of another tree, over the same cache."""
        other = CapturedTransformersPass(self.passes, self.slots, index.nodes, index, self._reading.boundaries)
        other.attention = self.attention
        return other

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
        experts = passes.experts.decoding(units, slots.length.device.type, True)
        with passes.ready(self.attention), experts, self._reading.listening():
            yield

    def verify(self, draft: Draft) -> TargetOutput:
        slots, index = self.slots, draft.index
        slots.scratch = not index.is_chain
        slots.open_static(draft.nodes)
        geometry = self.passes.geometry(slots, index, 0, False)
        arguments = self.passes.arguments(slots, index.depth, draft.valid, 0)
        branches = self._branches if self._branches is not None else Branches.of(index, self.slots.state_dtype)
        with self._reading.recording() as record:
            logits = self.passes.forward(slots, draft.units, geometry, arguments, branches)
        return TargetOutput(logits=logits, hidden=record.states)

    def commit(self, path: Tensor, count: Tensor) -> None:
        self.slots.commit_static(path, count)
