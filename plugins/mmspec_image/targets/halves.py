"""Guidance on the core's cache: one logical row is two physical ones, with and without the condition, and one verdict.

Both halves read the same codes and keep the same path. Codes come after conditioning slots, which are no units.
"""

from dataclasses import dataclass

from torch import Tensor

from mmspec.core.tree import TreeIndex
from mmspec.core.types import Raw
from mmspec.hosts.slot_cache import SlotCache


@dataclass
class Halves:
    """One call's memory.

    Attributes:
        slots: Keys and values of all physical rows, the conditional half first.
        rows: Logical rows.
        given: `[physical]` int64: slots of the condition, before the first code.
    """

    slots: SlotCache
    rows: int
    given: Tensor

    def physical(self, values: Tensor) -> Tensor:
        """What every half reads: all rows, once or twice."""
        halves = len(self.slots.length) // self.rows
        return values if halves == 1 else values.repeat(halves, *(1,) * (values.dim() - 1))

    def index(self, index: TreeIndex) -> TreeIndex:
        """A tree for every physical row, where rows have trees of their own."""
        if len(index.parent) == 1:
            return index
        parts = (self.physical(part) for part in (index.parent, index.depth, index.ancestor, index.rank))
        return TreeIndex(*parts, index.deepest, index.widest, index.is_chain)

    def raw(self, logits: Tensor) -> Raw:
        """Scores `[physical, node, vocab]`, taken apart."""
        halves = logits.split(self.rows)
        return Raw(logits=halves[0], null=halves[1] if len(halves) > 1 else None)

    def commit(self, path: Tensor, count: Tensor) -> None:
        """As a target's `commit`."""
        self.slots.commit(self.physical(path), self.physical(count))

    def truncate(self, length: Tensor) -> None:
        """As a target's `truncate`: `length [rows]` counts codes."""
        self.slots.length = self.physical(length) + self.given
