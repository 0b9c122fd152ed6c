"""From draws to a verdict in one launch: the winner of every race, the walk along equal children, the path.

Reference: `mmspec.core.rules.rule.walk`.
"""

import torch
import triton
import triton.language as tl

from mmspec.core.kernels import beside
from mmspec.core.kernels.race import Winners
from mmspec.core.types import Draft, Verdict


@triton.jit
def _walk(
    values, parts_units, units, valid, parent, depth, ancestor, drawn, path, length, last, nodes, deepest, tree_stride,
    PARTS: tl.constexpr, STEPS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row, node = tl.program_id(0), tl.arange(0, SIZE)
    here, tree = node < nodes, row * tree_stride
    at = row * nodes + node
    top = tl.full((SIZE,), -float("inf"), tl.float32)
    y = tl.zeros((SIZE,), tl.int64)
    broken = node < 0
    for part in range(PARTS):  # in order: of equals the smaller id stands
        value = tl.load(values + at * PARTS + part, mask=here, other=-float("inf"))
        unit = tl.load(parts_units + at * PARTS + part, mask=here, other=0)
        broken |= value != value
        y = tl.where(value > top, unit, y)
        top = tl.maximum(top, value)
    y = tl.where(broken, 0, y)  # as in torch: the argmax of NaN
    tl.store(drawn + at, y, mask=here)
    up = tl.maximum(tl.load(parent + tree + node, mask=here, other=0), 0).to(tl.int32)
    equal = tl.gather(y, up, 0) == tl.load(units + at, mask=here, other=0)
    kept = (tl.load(valid + at, mask=here, other=0) != 0) & ((node == 0) | equal) & here
    reached = kept.to(tl.int32)
    for _ in range(STEPS):  # twice as many ancestors in every step
        reached &= tl.gather(reached, up, 0)
        up = tl.gather(up, up, 0)
    level = tl.load(depth + tree + node, mask=here, other=0).to(tl.int32)
    reach = tl.where((reached > 0) & here, level, -1)
    most = tl.max(reach, 0)
    leaf = tl.min(tl.where(reach == most, node, SIZE), 0)
    leaf = tl.where(most < 0, 0, leaf)
    on_path = tl.load(ancestor + (tree + leaf) * nodes + node, mask=here, other=0) != 0
    tl.store(path + row * deepest + level - 1, node.to(tl.int64), mask=on_path & (level > 0) & here)
    tl.store(length + row, most.to(tl.int64))
    tl.store(last + row, tl.sum(tl.where(node == leaf, y, 0), 0))


def walk(draft: Draft, winners: Winners) -> Verdict:
    """The verdict on a rooted draft whose units have no shape of their own, given the races at its nodes."""
    index, (rows, nodes, parts) = draft.index, winners.value.shape
    device = winners.value.device
    drawn = torch.empty(rows, nodes, dtype=torch.int64, device=device)
    path = torch.full((rows, index.deepest), -1, device=device)
    length, last = torch.empty(2, rows, dtype=torch.int64, device=device)
    tree = (each.contiguous() for each in (index.parent, index.depth, index.ancestor))
    with beside(winners.value):
        _walk[(rows,)](
            *winners, draft.units.contiguous(), draft.valid.contiguous(), *tree, drawn, path, length, last,
            nodes, index.deepest, nodes if len(index.parent) > 1 else 0,
            PARTS=parts, STEPS=max(1, index.deepest.bit_length()), SIZE=max(16, triton.next_power_of_2(nodes)),
        )  # fmt: skip
    return Verdict(path, length, last, drawn)
