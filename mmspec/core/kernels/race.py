"""A draw at every node from logits by an exponential race, argmax of softmax(logits) / E; and the walk along the draws.

References: `Categorical.draw` of `Categorical.of_logits`, and `mmspec.core.rules.rule.walk`. The race is run as
argmax(logits - log E), which is the same up to rounding. Logits are read once, in float32, bfloat16 or float16. How the
vocabulary is cut depends on its size only, so that a node's draw depends neither on the other nodes nor on their
number. The walk is one launch: the winner of every race, the walk along equal children, the path.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.core.kernels import beside
from mmspec.core.kernels.random import exponentials, seed_of
from mmspec.core.types import Draft, Verdict

SPAN, BLOCK = 8192, 1024
"""Units of the vocabulary that one program takes, and at a time."""


class Winners(NamedTuple):
    """The best of every part of the vocabulary."""

    # `[batch, node, part]` float32; -inf where a part has no unit of positive probability, NaN where the node's
    # distribution is not valid
    value: Tensor
    unit: Tensor  # `[batch, node, part]` int64


@triton.jit
def better(value, unit, top, winner):
    """The best of a block, `value` of the ids `unit`, against the best so far; the smallest id among equals."""
    most = tl.max(value, 0)
    first = tl.min(tl.where(value == most, unit, 2147483647), 0)
    wins = most > top
    return tl.where(wins, most, top), tl.where(wins, first, winner)


@triton.jit
def _race(
    logits, key, emitted, depth, values, units, vocab, nodes, row_stride, node_stride, depth_stride,
    PARTS: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program, part = tl.program_id(0), tl.program_id(1)
    row, node = program // nodes, program % nodes
    seed = seed_of(key, row)
    position = tl.load(emitted + row) + tl.load(depth + row * depth_stride + node)
    start = logits + row.to(tl.int64) * row_stride + node * node_stride
    top, winner, broken = -float("inf"), 0, 0
    for first in range(part * SPAN, tl.minimum(part * SPAN + SPAN, vocab), BLOCK):
        unit = first + tl.arange(0, BLOCK)
        x = tl.load(start + unit, mask=unit < vocab, other=-float("inf")).to(tl.float32)
        wrong = (x != x) | (x == float("inf"))  # no softmax has a value for these
        broken += tl.sum(wrong.to(tl.int32), 0)
        e = exponentials(seed, first, position, 0, tl.zeros_like(position), BLOCK)
        top, winner = better(tl.where(wrong, -float("inf"), x - tl.log(e)), unit, top, winner)
    tl.store(values + program * PARTS + part, tl.where(broken > 0, float("nan"), top))
    tl.store(units + program * PARTS + part, winner)


def race(logits: Tensor, key: Tensor, emitted: Tensor, depth: Tensor) -> Winners:
    """The race by position, `[batch, node]`, in one launch.

    Args:
        logits: `[batch, node, vocab]`, after all processors and the temperature.
        key: `[batch, 2]` int64, as in `PhiloxSource`.
        emitted: `[batch]` int64: the position of the root's draw.
        depth: `[batch, node]` int64, or `[1, node]`.
    """
    logits = logits if logits.stride(2) == 1 else logits.contiguous()
    rows, nodes, vocab = logits.shape
    parts = triton.cdiv(vocab, SPAN)
    values = torch.empty(rows, nodes, parts, dtype=torch.float32, device=logits.device)
    units = torch.empty(rows, nodes, parts, dtype=torch.int64, device=logits.device)
    block = min(BLOCK, max(4, triton.next_power_of_2(vocab)))
    strides = *logits.stride()[:2], nodes if len(depth) > 1 else 0
    with beside(logits):
        _race[(rows * nodes, parts)](
            logits, key.contiguous(), emitted.contiguous(), depth.contiguous(), values, units, vocab, nodes, *strides,
            PARTS=parts, SPAN=SPAN, BLOCK=block,
        )  # fmt: skip
    return Winners(values, units)


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
