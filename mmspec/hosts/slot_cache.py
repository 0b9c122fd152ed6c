"""A key-value cache in which every row has its own length.

Rows are left-aligned. The nodes of a draft are written behind a row's committed units (`length[row] + node`). Attention
sees committed units and a node's ancestors. A commit gathers the accepted path to the front, in place. Slots are
allocated as rows become longer, in whole blocks and at least twice as many as before, so that a call that may become
long and does not needs little memory. Layers with a window may keep the latest slots in a ring
(`mmspec.hosts.slot_layer`). Layers that read another layer's keys (Gemma 3n, Gemma 4) own no slots. Recurrent layers
(`mmspec.hosts.recurrent`) keep one state per row; a layer may have both keys and a state.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import (
    Cache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionCacheLayerMixin,
)

from mmspec.core.live import bucket
from mmspec.core.tree import TreeIndex
from mmspec.hosts.fused_layers import FusedLayers
from mmspec.hosts.masks import NAME, current
from mmspec.hosts.recurrent import RecurrentLayer
from mmspec.hosts.slot_layer import BLOCK, Places, RingLayer, SlotLayer, in_blocks, in_powers, move_accepted
from mmspec.hosts.tree_op import Branches, KeptNodes, TreeOp


class SlotCache(Cache):
    """The cache of one call, over empty cache layers as transformers makes them for the model; those that store keys or
    states are replaced by layers of this module.

    `most` slots are needed for prompt, new units and one draft; they are rounded up to whole blocks. With `fixed`, the
    shapes of passes do not depend on how far the rows are. `rings` has the places of a ring for every window
    (`mmspec.hosts.slot_layer`); a layer whose window has none keeps all slots, and so does one whose ring would be as
    long as the call, or as its buffers if `fixed`.
    """

    attention = NAME
    fused = FusedLayers()  # the parts of layers that kernels compute in passes over it

    def __init__(
        self,
        layers: Sequence[Any],
        rows: int,
        most: int,
        device: torch.device,
        fixed: bool = False,
        rings: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self.fixed = fixed
        self.most = in_blocks(most)  # slots that are never exceeded
        self.capacity = 0  # slots that are allocated now
        longest = bucket(self.most) if fixed else self.most  # captured rounds hold calls of many lengths
        self.rings = {window: ring for window, ring in rings.items() if ring < longest}
        self.free_to_read = device.type == "cpu"  # lengths are read in every pass: where that is no host sync
        self.longest = 0  # no row has more committed units, on the host; who makes rows longer raises it
        self.unsure = 0  # `longest` is too large by at most so many units
        self.begun = [0] * rows  # units that every row had when its prompt was in the cache, on the host
        self.length = torch.zeros(rows, dtype=torch.int64, device=device)  # `[batch]`: committed units
        # `[batch]` or `[axes, batch]` int64: the position of a unit minus its slot. It is 0 if positions count units,
        # and not 0 with image axes, holes in the mask, or slots that were left out.
        self.shift = torch.zeros(rows, dtype=torch.int64, device=device)
        self.end = self.length  # `[batch]`: the slot behind the last that any pass wrote; counted where there are rings
        # `[axes, batch, unit]` int64: the positions of new units, where they are not `slot + shift`
        self.places: Tensor | None = None
        self.origin = self.length  # `[batch]`: the slot of the first of these units
        # `[batch, capacity]` bool: slots that no node may see, because the prompt's mask has a 0 there. Windows and
        # chunks count these slots, as transformers does.
        self.holes: Tensor | None = None
        self.start: int | None = None  # the first slot that the present pass writes, if all rows have the same
        self.slots = self.length[:, None]  # `[batch, node]` int64: the slots that it writes otherwise
        # Where these lie in layers of every form, once a layer has asked
        self.written: dict[tuple[int, int, torch.device], Places] = {}
        self.visible = 0  # slots that the present pass attends over
        self.reading = False  # passes read a prompt, whose shapes follow from the prompt alone
        self.scratch = False  # the last pass was over a tree, so that a commit must gather the accepted nodes
        self._tables: dict[int, Any] = {}
        stateful = [i for i, layer in enumerate(layers) if isinstance(layer, LinearAttentionCacheLayerMixin)]
        self.recurrent = {i: RecurrentLayer(self.state_dtype) for i in stateful}
        self.running: RecurrentLayer | None = None  # the one that called the cache last in this pass
        alone = {i: layer for i, layer in self.recurrent.items() if not isinstance(layers[i], DynamicLayer)}
        slotted = [self._slotted(layer) if isinstance(layer, DynamicLayer) else layer for layer in layers]
        super().__init__(layers=[alone.get(i, layer) for i, layer in enumerate(slotted)])

    def _slotted(self, layer: DynamicLayer) -> SlotLayer:
        window = layer.sliding_window if isinstance(layer, DynamicSlidingWindowLayer) else None
        return RingLayer(self, self.rings[window]) if window in self.rings else SlotLayer(self)

    @property
    def exact(self) -> bool:
        """True if passes sum in float64, so that a unit's scores do not show how the units came into the cache: in
        calls of one shape, which alone profit, on a CPU, where it does not cost too much.
        """
        return self.fixed and self.length.device.type == "cpu"

    @property
    def state_dtype(self) -> torch.dtype:
        """The dtype of recurrent states, in which their operations compute."""
        return torch.float64 if self.exact else torch.float32

    @property
    def owning(self) -> list[SlotLayer]:
        """The layers that hold keys."""
        return [layer for layer in self.layers if isinstance(layer, SlotLayer) and layer.is_initialized]

    @property
    def most_nodes(self) -> int:
        """The most nodes of a pass: what rings hold beside their windows."""
        return min((ring - window for window, ring in self.rings.items()), default=self.most)

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
            blocks = self.most if self.fixed else min(self.most, in_blocks(used))
            self.visible = used if uniform and nodes == 1 else blocks
        elif self.fixed and not self.reading:
            self.visible = self.most
        elif self.longest + first + nodes > self.visible:
            if self.unsure >= BLOCK:  # a host sync, where nobody told the lengths
                self.longest, self.unsure = int(self.length.max()), 0
            # Few sizes: cuDNN takes 50 ms to plan attention over another number of slots.
            self.visible = max(self.visible, min(self.most, in_powers(self.longest + first + nodes)))
        self.reserve(self.most if self.fixed else self.visible)
        if self.rings:
            self.reach(first + nodes)
        if self.start is None:
            self.place(first, nodes)

    def reach(self, nodes: int) -> None:
        """Passes have written so many slots behind the committed ones."""
        self.end = torch.maximum(self.end, self.length + nodes)

    def place(self, first: int, nodes: int) -> None:
        """Let the pass write behind the committed slots, where that is not the same for all rows."""
        slots = self.length[:, None] + torch.arange(first, first + nodes, device=self.length.device)
        # Invalid nodes may lie beyond the end; they are written into the last slot, which is never committed.
        self.slots = slots.clamp(max=self.most - 1)
        if not torch.compiler.is_compiling():  # compiled code asks for none
            self.written.clear()

    def reserve(self, slots: int) -> None:
        """Allocate at least so many slots (never more than `most`)."""
        if slots <= self.capacity:
            return
        self.capacity = min(self.most, max(in_blocks(slots), 2 * self.capacity))
        for layer in self.owning:
            layer.grow()
        if self.holes is not None:
            self.holes = torch.nn.functional.pad(self.holes, (0, self.capacity - self.holes.shape[1]))

    def make_room(self, most: int, layers: Sequence[Any]) -> "SlotCache":
        """The cache to go on with if rows may need `most` slots, more than was known when the call began.

        The layers are empty cache layers as transformers makes them for the model.
        """
        self.most = max(self.most, in_blocks(most))
        return self

    def take(self, rows: Tensor) -> None:
        """Hold copies of the rows `rows [n]`, and nothing else; what they began with is the caller's to say."""
        for layer in self.owning:
            layer.take(rows)
        for recurrent in self.recurrent.values():
            recurrent.take(rows)
        self.length, self.end, self.origin = (each[rows] for each in (self.length, self.end, self.origin))
        self.shift = self.shift[..., rows]
        self.holes = None if self.holes is None else self.holes[rows]
        self._forget_rows()

    def join(self, others: "Sequence[SlotCache]") -> None:
        """Hold the rows of other caches of the model behind its own; without rings and `places`."""
        every = (self, *others)
        self.most = max(cache.most for cache in every)
        self.capacity = max(cache.capacity for cache in every)
        for layer, *theirs in zip(self.owning, *(other.owning for other in others), strict=True):
            layer.join(theirs)
        for number, recurrent in self.recurrent.items():
            recurrent.join([other.recurrent[number] for other in others])
        if any(cache.holes is not None for cache in every):
            self.holes = torch.cat([cache._all_holes(self.capacity) for cache in every])
        self.length, self.end, self.origin, self.shift = (
            torch.cat([getattr(cache, name) for cache in every]) for name in ("length", "end", "origin", "shift")
        )
        self.begun = [units for cache in every for units in cache.begun]
        self.longest, self.unsure = max(cache.longest for cache in every), max(cache.unsure for cache in every)
        self._forget_rows()

    def _all_holes(self, capacity: int) -> Tensor:
        """The holes of every row, `[batch, capacity]` bool."""
        none = torch.zeros(len(self.length), 0, dtype=torch.bool, device=self.length.device)
        holes = none if self.holes is None else self.holes
        return torch.nn.functional.pad(holes, (0, capacity - holes.shape[1]))

    def _forget_rows(self) -> None:
        """Forget what was computed for other rows or tensors than there are now."""
        self._tables.clear()
        self.written.clear()

    def set_holes(self, holes: Tensor) -> None:
        """Let the slots `holes [batch, capacity]` hold padding, and no others."""
        self.holes = holes

    def commit(self, path: Tensor, count: Tensor) -> None:
        """Keep node 0 and the first `count - 1` nodes of `path [batch, depth]`; rows with count 0 keep nothing."""
        self.keep(path, count)
        self.set_length(self.length + count)
        self.longest += path.shape[1] + 1
        self.unsure += path.shape[1] + 1

    def set_length(self, length: Tensor) -> None:
        """Let every row have its first `length [batch]` slots."""
        self.length = length

    def keep(self, path: Tensor, count: Tensor) -> None:
        """`commit` without the lengths."""
        # The accepted nodes of a chain are in the right slots already.
        if self.scratch and path.shape[1]:
            move_accepted(self.owning, self.length, path, count, self._tables)
        self.commit_states(KeptNodes.along(path, count))

    def synced(self, emitted: Sequence[int]) -> None:
        """Take the lengths that the loop read: no row has committed more than what it began with and has emitted."""
        self.longest, self.unsure = max(b + new for b, new in zip(self.begun, emitted, strict=True)), 0

    def roll_back(self, length: Tensor) -> None:
        """Forget the committed units behind `length [batch]`; refuses where a window has dropped slots that the next
        unit reaches.
        """
        for window, ring in self.rings.items():
            if bool(((length - window + 1).clamp(min=0) < self.end - ring).any()):
                raise ValueError(
                    f"a call cannot go back to {length.tolist()} units: layers with a window of {window} keep {ring} "
                    f"units, and passes have reached {self.end.tolist()}"
                )
        self.set_length(length)

    def branches(self, index: TreeIndex) -> Branches:
        """The tree of a pass, for recurrent layers."""
        return Branches.of(index, self.state_dtype, self.reading)

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

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.visible

    def get_seq_length(self, layer_idx: int | None = None) -> Any:
        """The slots that the pass attends over; for a layer that asks, what gives its nodes their positions.

        The layer adds the number of a node (Llama 4, whose attention has a temperature by position).
        """
        geometry = None if layer_idx is None else current.get()
        return self.visible if geometry is None else geometry.past

    @property
    def is_linear(self) -> list[bool]:
        return [isinstance(layer, RecurrentLayer) for layer in self.layers]
