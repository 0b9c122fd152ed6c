"""The cache of a DFlash head: keys and values of the known units before the root, and the scratch of one block."""

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from mmspec.core.distributions import take_nodes
from mmspec.core.tree import TreeIndex
from mmspec.hosts.slot_cache import SlotCache
from mmspec_text.drafters.heads.block import Block
from mmspec_text.drafters.heads.cache import CHUNK, chain_path
from mmspec_text.drafters.heads.dflash.network import DFlashNetwork
from mmspec_text.drafters.heads.rows import Rows


class Context:
    """The cache of one call.

    Args:
        head: The head.
        rows: Rows of the batch.
        most: Known units of the longest row at the end of the call.
        device: The device.

    Attributes:
        slots: Keys and values; every row has those of its known units, without the root's.
    """

    def __init__(self, head: DFlashNetwork, rows: int, most: int, device: torch.device) -> None:
        self.head = head
        layers = [DynamicLayer() for _ in range(head.depth)]
        self.slots = SlotCache(layers, rows, most + max(CHUNK, head.architecture.block), device)

    @torch.inference_mode()
    def append(self, rows: Rows) -> None:
        """Read the features of known units."""
        slots, columns = self.slots, rows.features.shape[1]
        for first in range(0, columns, CHUNK):
            size = min(CHUNK, columns - first)
            place, count = rows.piece(first, size)
            chain = TreeIndex.chain(size, place.device)
            slots.open(0, size)
            self.head.absorb(take_nodes(rows.features, place), slots, slots.length[:, None] + chain.depth)
            slots.commit(chain_path(size, len(count), place.device), count)

    @torch.inference_mode()
    def block(self, root: Tensor) -> Block:
        """What the head says of the units behind the root `[batch]`."""
        return Block(self.head, self.head.block(root, self.slots), self.head.sequel)
