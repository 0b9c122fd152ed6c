"""A head's cache: committed rows, which were computed from the target's features, and the scratch of one draft.

A draft's rows are computed from the head's own states, which are only a guess of the target's. Keeping them costs 8 to
15 % of the acceptance length, so that no drafted row is ever committed: after every verification the accepted units are
fed again with their true features. The root's row is the last of these. It is node 0 of the draft that follows, and it
is committed when the next rows arrive.
"""

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from mmspec.core.distributions import take_nodes
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, TargetOutput
from mmspec.hosts.masks import PassGeometry
from mmspec.hosts.slot_cache import SlotCache
from mmspec_text.drafters.heads.head import Head
from mmspec_text.drafters.heads.rows import Rows

CHUNK = 512
"""Rows of a pass over a prompt."""


class HeadCache:
    """The cache of one call.

    Args:
        head: The head.
        rows: Rows of the batch.
        most: Known units of the longest row at the end of the call, and the nodes of one draft.
        device: The device.

    Attributes:
        slots: Keys and values; the length of a row is that of its committed rows, without the root's.
        states: `[batch, node, hidden]`: what the head returned at the nodes in the scratch.
    """

    def __init__(self, head: Head, rows: int, most: int, device: torch.device) -> None:
        self.head = head
        self.slots = SlotCache([DynamicLayer() for _ in range(head.depth)], rows, most + CHUNK, device)
        self.states = torch.empty(rows, 0, 0, device=device)
        self._open = torch.zeros(rows, dtype=torch.bool, device=device)  # node 0 is a row that is not committed

    @torch.inference_mode()
    def append(self, rows: Rows, units: Tensor) -> TargetOutput:
        """`read` rows; the output at the root, one node."""
        self.read(rows, units)
        return self.at_root()

    @torch.inference_mode()
    def read(self, rows: Rows, units: Tensor) -> None:
        """Read true rows; the last of them, whose unit is the root, becomes node 0 of the scratch.

        Args:
            rows: The features.
            units: `[batch, column]` int64: their units.
        """
        columns = rows.features.shape[1]
        last: Tensor | None = None
        none = self.slots.length[:, None][:, :0]
        for first in range(0, columns, CHUNK):
            size = min(CHUNK, columns - first)
            place, count = rows.piece(first, size)
            closing = self._open & (rows.count > 0)
            self.slots.commit(none, closing.long())
            chain = TreeIndex.chain(size, place.device)
            states = self.head.taken_in(take_nodes(rows.features, place))
            result = self._passed(take_nodes(units, place), states, chain, 0)
            self.slots.commit(chain_path(size, len(count), place.device), (count - 1).clamp(min=0))
            own = take_nodes(result, (count - 1).clamp(min=0)[:, None])
            last = own if last is None else torch.where((count > 0)[:, None, None], own, last)
            self._open = (self._open & ~closing) | (count > 0)
        assert last is not None, "there are no rows"
        self.states = last

    @torch.inference_mode()
    def at_root(self) -> TargetOutput:
        """The output at node 0 of the scratch."""
        return TargetOutput(logits=self.head.logits(self.states[:, :1]))

    @torch.inference_mode()
    def grow(self, draft: Draft, first: int) -> TargetOutput:
        """The output at the nodes of a rooted draft from `first` on; those before are in the scratch."""
        parents = draft.index.parent[:, first:]
        result = self._passed(draft.units[:, first:], take_nodes(self.states, parents), draft.index, first)
        self.states = torch.cat([self.states[:, :first], result], 1)
        return TargetOutput(logits=self.head.logits(result))

    def _passed(self, units: Tensor, states: Tensor, index: TreeIndex, first: int) -> Tensor:
        slots = self.slots
        slots.open(first, units.shape[1])
        geometry = PassGeometry(slots.length, index.ancestor[:, first:], index.depth, slots.visible)
        return self.head.passed(units, states, slots, geometry)


def chain_path(nodes: int, rows: int, device: torch.device) -> Tensor:
    """The path through a chain of so many nodes, the first one left out: `[batch, nodes - 1]`."""
    return torch.arange(1, nodes, device=device).expand(rows, -1)
