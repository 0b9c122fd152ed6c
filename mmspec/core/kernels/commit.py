"""The commit of a tree in one launch: keys and values of the accepted path move to the front, in all layers.

Reference: the loop over layers in `mmspec.hosts.slot_cache.SlotCache.commit`, with four launches a layer. The path's
node ids ascend, so that moves in its order never read a slot that was written before: they need no copy in between.
"""

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from mmspec.core.kernels import beside
from mmspec.core.transfer import on_device

_WORDS = {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}
"""Numbers are moved as words of their size."""


@triton.jit
def _move(table, length, path, count, deepest, WORD: tl.constexpr, FIELDS: tl.constexpr, WIDTH: tl.constexpr):
    row, head, entry = tl.program_id(0), tl.program_id(1), table + tl.program_id(2) * FIELDS
    states = tl.load(entry).to(tl.pointer_type(WORD))
    row_stride, head_stride, slot_stride = tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    heads, slots, width = tl.load(entry + 4), tl.load(entry + 5), tl.load(entry + 6)
    states += row * row_stride + head * head_stride
    column = tl.arange(0, WIDTH)
    inside = column < tl.where(head < heads, width, 0)
    start, kept = tl.load(length + row), tl.load(count + row) - 1
    for step in range(0, tl.minimum(kept, deepest)):
        source = (start + tl.load(path + row * deepest + step)) % slots
        values = tl.load(states + source * slot_stride + column, mask=inside, other=0)
        tl.store(states + ((start + step + 1) % slots) * slot_stride + column, values, mask=inside)


def move_accepted(
    states: Sequence[Tensor], length: Tensor, path: Tensor, count: Tensor, tables: dict[int, Any]
) -> None:
    """Move nodes of all layers in place: one launch for all states of one size of numbers.

    Args:
        states: Keys and values of the layers, `[batch, heads, slots, width]` each, on one device. Slot `s` of a row
            lies at place `s % slots`.
        length: `[batch]` int64: the slot of node 0.
        path: `[batch, depth]` int64: accepted node ids after the root, -1 padded.
        count: `[batch]` int64: the first `count - 1` nodes of the path move to the slots behind node 0.
        tables: What was sent to the device for these layers, by size of numbers; kept as long as no layer grows,
            since a graph that holds this launch reads it.
    """
    for size in {each.element_size() for each in states}:
        moved = [each for each in states if each.element_size() == size]
        entries = tuple(_entry(each) for each in moved)
        if tables.get(size, ())[:1] != (entries,):
            tables[size] = entries, on_device(entries, length.device)
        table = tables[size][1]
        most_heads, widest = max(each.shape[1] for each in moved), max(each.shape[3] for each in moved)
        with beside(length):
            _move[(len(path), most_heads, len(moved))](
                table, length.contiguous(), path.contiguous(), count.contiguous(), path.shape[1],
                WORD=_WORDS[size], FIELDS=table.shape[1], WIDTH=triton.next_power_of_2(widest),
            )  # fmt: skip


def _entry(states: Tensor) -> tuple[int, ...]:
    """The part that the kernel reads of a tensor."""
    assert states.stride(3) == 1
    return states.data_ptr(), *states.stride()[:3], *states.shape[1:]
