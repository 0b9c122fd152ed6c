"""A key-value cache in which every row has its own length.

Rows are left-aligned. The nodes of a draft are written behind a row's committed units (`length[row] + node`). Attention
sees committed units and a node's ancestors. A commit gathers the accepted path to the front, in place. Slots are
allocated as rows become longer, in whole blocks and at least twice as many as before, so that a call that may become
long and does not needs little memory. Sliding windows are applied by the mask alone: every layer is stored at full
length, so that it can be rolled back. Layers that read another layer's keys (Gemma 3n, Gemma 4) own no slots. Recurrent
layers (`mmspec.hosts.recurrent`) keep one state per row; a layer may have both keys and a state.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, LinearAttentionCacheLayerMixin

from mmspec.core import kernels
from mmspec.hosts.recurrent import RecurrentLayer
from mmspec.hosts.tree_op import Branches, KeptNodes, TreeOp

BLOCK = 64
"""Slots are allocated, and attended over, in multiples of so many."""
SMALLEST_BUCKET = 256
"""The fewest slots of a captured pass."""


class SlotLayer(CacheLayerMixin):
    """Keys and values of one layer: `[batch, heads, slots, width]`."""

    is_compileable = True
    is_sliding = False
    is_croppable = False

    def __init__(self, owner: "SlotCache") -> None:
        super().__init__()
        self.owner = owner

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        batch, heads, _, width = key_states.shape
        self.keys = key_states.new_zeros(batch, heads, self.owner.capacity, width)
        self.values = value_states.new_zeros(batch, heads, self.owner.capacity, value_states.shape[-1])
        self.is_initialized = True

    def grow(self, capacity: int) -> None:
        """Copy keys and values into larger tensors."""
        self.keys, self.values = _longer(self.keys, capacity), _longer(self.values, capacity)

    def load(self, other: "SlotLayer") -> None:
        """Copy the keys and values of another layer, which has at most as many slots."""
        if not self.is_initialized:
            with torch.inference_mode(False):
                self.lazy_initialization(other.keys, other.values)
        self.keys.narrow(2, 0, other.keys.shape[2]).copy_(other.keys)
        self.values.narrow(2, 0, other.values.shape[2]).copy_(other.values)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        owner = self.owner
        if owner.start is not None:
            self.keys.narrow(2, owner.start, key_states.shape[2]).copy_(key_states)
            self.values.narrow(2, owner.start, key_states.shape[2]).copy_(value_states)
        else:
            self.write(owner.slots, key_states, value_states)
        return self.keys.narrow(2, 0, owner.visible), self.values.narrow(2, 0, owner.visible)

    def write(self, slots: Tensor, key_states: Tensor, value_states: Tensor) -> None:
        """Put states `[batch, heads, n, width]` into slots `[batch, n]`."""
        at = slots.to(self.keys.device)[:, None, :, None]  # a model may be spread over devices, layer by layer
        self.keys.scatter_(2, at.expand_as(key_states), key_states)
        self.values.scatter_(2, at.expand_as(value_states), value_states)

    def read(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of slots `[batch, n]`: `[batch, heads, n, width]` each."""
        at = slots.to(self.keys.device)[:, None, :, None]
        keys = self.keys.gather(2, at.expand(-1, self.keys.shape[1], -1, self.keys.shape[-1]))
        return keys, self.values.gather(2, at.expand(-1, self.values.shape[1], -1, self.values.shape[-1]))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.owner.visible, 0

    def get_seq_length(self) -> int:
        return self.owner.visible

    def get_max_length(self) -> int:
        return self.owner.most


class SlotCache(Cache):
    """The cache of one call.

    Args:
        layers: Empty cache layers as transformers makes them for the model; those that store keys or states are
            replaced by layers of this module.
        rows: The rows of the batch.
        most: The slots needed for prompt, new units and one draft; rounded up to whole blocks.
        device: The device of the model's inputs.
        fixed: Whether the shapes of passes must not depend on how far the rows are.

    Attributes:
        most: The slots that are never exceeded.
        capacity: The slots that are allocated now.
        free_to_read: Whether lengths are read in every pass: on the CPU, where that is no host sync.
        longest: No row has more committed units, on the host. Who makes rows longer raises it.
        length: `[batch]` int64: the committed units of every row.
        shift: `[batch]` or `[axes, batch]` int64: the position of a unit minus its slot. It is 0 if positions count
            units, and not 0 with image axes, holes in the mask, or slots that were left out.
        holes: `[batch, capacity]` bool: slots that no node may see, because the prompt's mask has a 0 there; or None.
            Windows and chunks count these slots, as transformers does.
        start: The first slot that the present pass writes, if it is the same for all rows; else None.
        slots: `[batch, node]` int64: the slots that the present pass writes, if `start` is None.
        visible: The number of slots that the present pass attends over.
        scratch: Whether the last pass was over a tree, so that a commit must gather the accepted nodes.
        recurrent: The recurrent layers by layer number.
        running: The recurrent layer that called the cache last in this pass.
        in_place: Whether every tensor keeps its address, because a captured pass reads it.
    """

    def __init__(self, layers: Sequence[Any], rows: int, most: int, device: torch.device, fixed: bool = False) -> None:
        self.fixed = fixed
        self.in_place = False
        self.most, self.capacity = _blocks(most), 0
        self.free_to_read = device.type == "cpu"
        self.longest = 0
        self.length = torch.zeros(rows, dtype=torch.int64, device=device)
        self.shift = torch.zeros(rows, dtype=torch.int64, device=device)
        self.holes: Tensor | None = None
        self.slots = self.length[:, None]
        self.start: int | None = None
        self.visible = 0
        self.scratch = False
        stateful = [i for i, layer in enumerate(layers) if isinstance(layer, LinearAttentionCacheLayerMixin)]
        self.recurrent = {i: RecurrentLayer() for i in stateful}
        self.running: RecurrentLayer | None = None
        alone = {i: layer for i, layer in self.recurrent.items() if not isinstance(layers[i], DynamicLayer)}
        slotted = [SlotLayer(self) if isinstance(layer, DynamicLayer) else layer for layer in layers]
        super().__init__(layers=[alone.get(i, layer) for i, layer in enumerate(slotted)])

    @property
    def owning(self) -> list[SlotLayer]:
        """The layers that hold keys."""
        return [layer for layer in self.layers if isinstance(layer, SlotLayer) and layer.is_initialized]

    def open(self, first: int, nodes: int) -> None:
        """Begin a pass over the nodes `first … first + nodes - 1` of every row's draft."""
        self.running = None
        for layer in self.recurrent.values():
            layer.open()
        self.start = None
        if self.free_to_read:
            lengths = self.length.tolist()
            self.longest = max(lengths)
            used = self.longest + first + nodes
            uniform = min(lengths) == self.longest and used <= self.most
            self.start = lengths[0] + first if uniform else None
            # A single node sees all used slots and needs no mask; else whole blocks keep the masks' shapes equal.
            blocks = self.most if self.fixed else min(self.most, _blocks(used))
            self.visible = used if uniform and nodes == 1 else blocks
        elif self.fixed:
            self.visible = self.most
        elif self.longest + first + nodes > self.visible:
            # The bound left the blocks in use: lengths are read, which is a host sync. One block more than needed is
            # made visible, so that this does not happen again before a block's worth of units was committed.
            if self.visible:  # before the first pass the bound is close
                self.longest = int(self.length.max())
            self.visible = min(self.most, _blocks(self.longest + first + nodes) + BLOCK)
        self.reserve(self.visible)
        if self.start is None:
            self._place(first, nodes)

    def open_static(self, nodes: int) -> None:
        """`open` for a pass over all slots, whose shapes do not depend on lengths; torch can trace it."""
        self.running = None
        for layer in self.recurrent.values():
            layer.open()
        self._place(0, nodes)

    def _place(self, first: int, nodes: int) -> None:
        slots = self.length[:, None] + torch.arange(first, first + nodes, device=self.length.device)
        # Invalid nodes may lie beyond the end; they are written into the last slot, which is never committed.
        self.slots = slots.clamp(max=self.most - 1)

    def reserve(self, slots: int) -> None:
        """Allocate at least so many slots (never more than `most`)."""
        if slots <= self.capacity:
            return
        self.capacity = min(self.most, max(_blocks(slots), 2 * self.capacity))
        for layer in self.owning:
            layer.grow(self.capacity)
        if self.holes is not None:
            self.holes = torch.nn.functional.pad(self.holes, (0, self.capacity - self.holes.shape[1]))

    def commit(self, path: Tensor, count: Tensor) -> None:
        """Keep node 0 and the first `count - 1` nodes of `path [batch, depth]`; rows with count 0 keep nothing."""
        self.keep(path, count)
        self.set_length(self.length + count)
        self.longest += path.shape[1] + 1

    def set_length(self, length: Tensor) -> None:
        """Let every row have its first `length [batch]` units."""
        if self.in_place:
            self.length.copy_(length)
        else:
            self.length = length

    def keep(self, path: Tensor, count: Tensor) -> None:
        """`commit` without the lengths."""
        # The accepted nodes of a chain are in the right slots already.
        if self.scratch and path.shape[1] and not moved_at_once(self.owning, self.length, path, count):
            order = torch.arange(1, path.shape[1] + 1, device=path.device)
            destination = self.length[:, None] + order
            kept = order < count[:, None]
            source = torch.where(kept, self.length[:, None] + path.clamp(min=0), destination)
            for layer in self.owning:
                layer.write(destination, *layer.read(source))
        self.commit_states(KeptNodes.along(path, count))

    def empty_bucket(self, layers: Sequence[Any]) -> "SlotCache":
        """An empty cache for the same rows, with slots for all calls of this one's bucket.

        Args:
            layers: As in the class.
        """
        with torch.inference_mode(False):
            own = SlotCache(layers, len(self.length), self.bucket, self.length.device, fixed=True)
        own.in_place = True
        return own

    @property
    def bucket(self) -> int:
        """The slots, rounded up to a power of two: few buckets, so that few passes are captured."""
        return max(SMALLEST_BUCKET, 1 << (self.most - 1).bit_length())

    @property
    def captured_shape(self) -> tuple[Any, ...]:
        """What two caches of a model share if one captured pass can serve both."""
        first = next(iter(self.owning), None)
        held = None if first is None else (first.keys.dtype, first.keys.device)
        return len(self.length), self.bucket, self.holes is None, self.shift.shape, held

    def load(self, other: "SlotCache") -> None:
        """Copy what another cache of the same layers holds into this one, in place where this one holds something.

        Args:
            other: A cache with as many rows, and at most as many slots.
        """
        pairs = [(mine, its) for mine, its in zip(self.layers, other.layers, strict=True)]
        self.reserve(self.most)
        for mine, its in pairs:
            if isinstance(mine, SlotLayer) and isinstance(its, SlotLayer) and its.is_initialized:
                mine.load(its)
        for number, layer in self.recurrent.items():
            layer.load(other.recurrent[number])
        self.length.copy_(other.length)
        self.shift = _written(self.shift, other.shift)
        if other.holes is not None:
            padded = torch.nn.functional.pad(other.holes, (0, self.most - other.holes.shape[1]))
            self.holes = _written(self.holes, padded)
        self.start, self.visible = None, self.most

    def commit_states(self, kept: KeptNodes) -> None:
        """Advance every recurrent state over the kept nodes of the last pass; keys are not moved."""
        for layer in self.recurrent.values():
            layer.commit(kept)

    def run(self, op: TreeOp, branches: Branches, args: Any, kwargs: Any) -> Any:
        """Run a recurrent operation of the layer that called the cache last."""
        assert self.running is not None, "a recurrent operation of a layer that did not ask for its state"
        return self.running.run(op, branches, args, kwargs)

    # The interface that transformers' mixers call around their operations; each call says which layer is running.
    # `mmspec.hosts.recurrent` explains why the answers are "no state".

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        self.running = self.recurrent[layer_idx]

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> None:
        self.running = self.recurrent[layer_idx]

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        self.running = self.running if layer_idx is None else self.recurrent[layer_idx]
        return False

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Tensor:
        self.running = self.recurrent[layer_idx]
        return conv_states

    def update_recurrent_state(self, recurrent_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Tensor:
        return recurrent_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.visible

    @property
    def is_linear(self) -> list[bool]:
        return [isinstance(layer, RecurrentLayer) for layer in self.layers]


def moved_at_once(layers: Sequence[SlotLayer], length: Tensor, path: Tensor, count: Tensor) -> bool:
    """Move the accepted path of all layers to the front in one launch, where a kernel can; whether it did.

    Not inside traced code, which would not know what the kernel writes.
    """
    states = [states for layer in layers for states in (layer.keys, layer.values)]
    if not kernels.available(path.device) or any(each.device != path.device for each in states):
        return False
    if not states or torch.compiler.is_compiling():
        return False
    from mmspec.core.kernels.commit import move_accepted

    move_accepted(states, length, path, count)
    return True


def _blocks(slots: int) -> int:
    """So many slots, rounded up to whole blocks."""
    return -(-slots // BLOCK) * BLOCK


def _longer(states: Tensor, capacity: int) -> Tensor:
    """States `[batch, heads, slots, width]` with more slots, which are 0."""
    with torch.inference_mode(False):  # a cache that grew in a pass is written outside of inference mode, too
        longer = states.new_zeros(*states.shape[:2], capacity, states.shape[3])
    longer.narrow(2, 0, states.shape[2]).copy_(states)
    return longer


def _written(mine: Tensor | None, values: Tensor) -> Tensor:
    """`values` in a tensor of ours: the one that there is if it has their shape, so that its address stays."""
    if mine is None or mine.shape != values.shape:
        with torch.inference_mode(False):
            return values.clone()
    return mine.copy_(values)
