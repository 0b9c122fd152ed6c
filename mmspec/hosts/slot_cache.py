"""A key-value cache with a length of its own for every row.

Preallocated, rows left-aligned, no padding ever moved. The nodes of a draft are written behind a row's committed units
(`length[row] + node`); attention sees what is committed and a node's ancestors; a commit gathers the accepted path to
the front, in place. Windows are the mask's business: every layer is stored at full length and can be rolled back.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

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
            slots = owner.slots[:, None, :, None]
            self.keys.scatter_(2, slots.expand_as(key_states), key_states)
            self.values.scatter_(2, slots.expand_as(value_states), value_states)
        return self.keys.narrow(2, 0, owner.visible), self.values.narrow(2, 0, owner.visible)

    def move(self, source: Tensor, destination: Tensor) -> None:
        """Copy slots `source [batch, n]` to `destination [batch, n]`."""
        for states in (self.keys, self.values):
            at = source[:, None, :, None].expand(-1, states.shape[1], -1, states.shape[-1])
            states.scatter_(2, destination[:, None, :, None].expand_as(at), states.gather(2, at))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.owner.visible, 0

    def get_seq_length(self) -> int:
        return self.owner.visible

    def get_max_length(self) -> int:
        return self.owner.capacity


class SlotCache(Cache):
    """The cache of one call.

    Args:
        layers: Attention layers of the model.
        rows: Rows of the batch.
        capacity: Slots needed: prompt, new units and one draft; rounded up to whole blocks.
        device: Where the model's inputs live.

    Attributes:
        length: `[batch]` int64: committed units of every row.
        slots: `[batch, node]` int64: where the pass at hand writes.
        start: The first of them where it is known to be the same for all rows; else None.
        visible: How many slots the pass at hand attends over.
    """

    def __init__(self, layers: int, rows: int, capacity: int, device: torch.device) -> None:
        self.capacity = -(-capacity // BLOCK) * BLOCK
        self.length = torch.zeros(rows, dtype=torch.int64, device=device)
        self.slots = self.length[:, None]
        self.start: int | None = None
        self.visible = self.capacity
        super().__init__(layers=[SlotLayer(self) for _ in range(layers)])

    def open(self, nodes: int) -> None:
        """Make ready for a pass over `nodes` nodes a row."""
        self.slots = self.length[:, None] + torch.arange(nodes, device=self.length.device)
        # On the CPU reading lengths costs nothing and attention shrinks to what is used; elsewhere it would be a host
        # sync, and shapes that stay the same are worth more.
        if self.length.device.type == "cpu":
            lengths = self.length.tolist()
            self.start = lengths[0] if min(lengths) == max(lengths) else None
            self.visible = min(self.capacity, -(-(max(lengths) + nodes) // BLOCK) * BLOCK)

    def commit(self, path: Tensor, count: Tensor, moved: bool) -> None:
        """Keep node 0 and the first `count - 1` nodes of `path [batch, depth]`; rows with count 0 keep nothing.

        Args:
            path: Node ids after the root, -1 padded.
            count: `[batch]` int64.
            moved: Whether accepted nodes may stand elsewhere than where they belong (trees); a chain's never do.
        """
        if moved and path.shape[1]:
            order = torch.arange(1, path.shape[1] + 1, device=path.device)
            destination = self.length[:, None] + order
            kept = order < count[:, None]
            source = torch.where(kept, self.length[:, None] + path.clamp(min=0), destination)
            for layer in self.layers:
                layer.move(source, destination)
        self.length = self.length + count
