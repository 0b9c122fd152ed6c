"""A key-value cache with a length of its own for every row.

Preallocated, rows left-aligned, no padding ever moved. The nodes of a draft are written behind a row's committed units
(`length[row] + node`); attention sees what is committed and a node's ancestors; a commit gathers the accepted path to
the front, in place. Windows are the mask's business: every layer is stored at full length and can be rolled back.
Layers that read another layer's keys (Gemma 3n, Gemma 4) own no slots. Recurrent layers (`mmspec.hosts.recurrent`) keep
one state a row; a layer may have both.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, LinearAttentionCacheLayerMixin

from mmspec.hosts.recurrent import RecurrentLayer
from mmspec.hosts.tree_op import Branches, KeptNodes, TreeOp

BLOCK = 64


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
        return self.owner.capacity


class SlotCache(Cache):
    """The cache of one call.

    Args:
        layers: transformers' own cache layers for the model, empty; those that store keys or states are replaced by
            ours.
        rows: Rows of the batch.
        capacity: Slots needed: prompt, new units and one draft; rounded up to whole blocks.
        device: Where the model's inputs live.

    Attributes:
        length: `[batch]` int64: committed units of every row.
        shift: `[batch]` or `[axes, batch]` int64: position of a unit less its slot. 0 where positions count units; else
            what image axes, holes in a mask or slots left out made of it.
        holes: `[batch, capacity]` bool: slots that nobody may see, because the prompt's mask has a hole there; or None.
            They keep their place: windows and chunks count them, as transformers' do.
        start: The first slot that the pass at hand writes, where it is known to be the same for all rows; else None.
        slots: `[batch, node]` int64: where it writes, if there is no such start.
        visible: How many slots the pass at hand attends over.
        scratch: Whether the last pass was over a tree, whose accepted nodes must be gathered.
        recurrent: The recurrent part of every layer that has one, by the layer's number.
        running: That of the layer that spoke to the cache last.
    """

    def __init__(self, layers: Sequence[Any], rows: int, capacity: int, device: torch.device) -> None:
        self.capacity = -(-capacity // BLOCK) * BLOCK
        self.length = torch.zeros(rows, dtype=torch.int64, device=device)
        self.shift = torch.zeros(rows, dtype=torch.int64, device=device)
        self.holes: Tensor | None = None
        self.slots = self.length[:, None]
        self.start: int | None = None
        self.visible = self.capacity
        self.scratch = False
        folding = [i for i, own in enumerate(layers) if isinstance(own, LinearAttentionCacheLayerMixin)]
        self.recurrent = {i: RecurrentLayer() for i in folding}
        self.running: RecurrentLayer | None = None
        alone = {i: layer for i, layer in self.recurrent.items() if not isinstance(layers[i], DynamicLayer)}
        ours = [SlotLayer(self) if isinstance(own, DynamicLayer) else own for own in layers]
        super().__init__(layers=[alone.get(i, own) for i, own in enumerate(ours)])

    @property
    def owning(self) -> list[SlotLayer]:
        """The layers that hold keys."""
        return [layer for layer in self.layers if isinstance(layer, SlotLayer) and layer.is_initialized]

    def open(self, first: int, nodes: int) -> None:
        """Make ready for a pass over the nodes `first … first + nodes - 1` of a row's draft."""
        self.running = None
        for layer in self.recurrent.values():
            layer.open()
        # On the CPU reading lengths costs nothing and attention shrinks to what is used; elsewhere it would be a host
        # sync, and shapes that stay the same are worth more.
        if self.length.device.type == "cpu":
            lengths = self.length.tolist()
            used = max(lengths) + first + nodes
            uniform = min(lengths) == max(lengths) and used <= self.capacity
            self.start = lengths[0] + first if uniform else None
            # One node that sees all there is needs no mask; whole blocks let masks of several passes look alike.
            self.visible = used if uniform and nodes == 1 else min(self.capacity, -(-used // BLOCK) * BLOCK)
        if self.start is None:
            slots = self.length[:, None] + torch.arange(first, first + nodes, device=self.length.device)
            # Nodes that no row may use can lie beyond the end; the last slot holds no committed unit.
            self.slots = slots.clamp(max=self.capacity - 1)

    def commit(self, path: Tensor, count: Tensor) -> None:
        """Keep node 0 and the first `count - 1` nodes of `path [batch, depth]`; rows with count 0 keep nothing."""
        if self.scratch and path.shape[1]:  # a chain's nodes stand where they belong already
            order = torch.arange(1, path.shape[1] + 1, device=path.device)
            destination = self.length[:, None] + order
            kept = order < count[:, None]
            source = torch.where(kept, self.length[:, None] + path.clamp(min=0), destination)
            for layer in self.owning:
                layer.write(destination, *layer.read(source))
        self.roll(KeptNodes.along(path, count))
        self.length = self.length + count

    def roll(self, kept: KeptNodes) -> None:
        """Take the kept nodes of the last pass into every recurrent state; keys stay where they are."""
        for layer in self.recurrent.values():
            layer.commit(kept)

    def run(self, op: TreeOp, branches: Branches, args: Any, kwargs: Any) -> Any:
        """A recurrent operation of the layer that spoke last."""
        assert self.running is not None, "a recurrent operation of a layer that did not ask for its state"
        return self.running.run(op, branches, args, kwargs)

    # What mixers ask, before or between their operations: `mmspec.hosts.recurrent` says why nothing is there.

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
