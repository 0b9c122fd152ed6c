"""Guidance on the core's cache: one logical row is two physical ones, with and without the condition, and one verdict.

Both halves read the same units and keep the same path. Units come after conditioning slots, which are none.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from mmspec.core.tree import TreeIndex
from mmspec.core.types import TargetOutput
from mmspec.hosts.slot_cache import SlotCache


@dataclass
class Halves:
    """One call's memory.

    Attributes:
        slots: Keys and values of all physical rows, the conditional half first.
        rows: Logical rows.
        given: `[physical]` int64: slots of the condition, before the first unit.
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
        return replace(
            index,
            parent=self.physical(index.parent),
            depth=self.physical(index.depth),
            ancestor=self.physical(index.ancestor),
            rank=self.physical(index.rank),
        )

    def apart(self, scores: Tensor) -> tuple[Tensor, Tensor | None]:
        """Scores `[physical, node, …]`: with the condition, and without it where there is guidance."""
        halves = scores.split(self.rows)
        return halves[0], halves[1] if len(halves) > 1 else None

    def output(self, logits: Tensor) -> TargetOutput:
        """Logits `[physical, node, vocab]`, taken apart."""
        given, null = self.apart(logits)
        return TargetOutput(logits=given, null=null)

    def commit(self, path: Tensor, count: Tensor) -> None:
        """As a target's `commit`."""
        self.slots.commit(self.physical(path), self.physical(count))

    def truncate(self, length: Tensor) -> None:
        """As a target's `truncate`: `length [rows]` counts units."""
        self.slots.length = self.physical(length) + self.given
