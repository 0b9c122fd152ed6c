"""STree's kernel: Mamba-2's recurrence over a tree in one launch (arXiv 2505.14969; the formula: `mmspec_ssm.ops.ssd`).

One program computes a head of a row: Y = ((C Bᵀ) ⊙ W)(Δ x) + e^L ⊙ (C S), all nodes as one chunk, in float32. W_ij is
e^{L_i - L_j} for j on the path of i, else 0. L, the sums of Δ A along paths, is not computed in here, as it is there: a
pass has it in float64 for its commit, and its differences are taken in that.
Reference: `mmspec_ssm.ops.ssd.scan`, up to the order of sums.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.core.kernels import beside
from mmspec.hosts.tree_op import Branches
from mmspec_ssm.ops.roll import NodeInputs

LEAST = 16
"""The least side of a matrix that Triton multiplies; smaller ones are padded."""


@triton.jit
def _scan(
    total, seen, seen_row, x, b, c, state, out, nodes, heads, groups, width, size,
    NODES: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    node, column, entry = tl.arange(0, NODES), tl.arange(0, WIDTH), tl.arange(0, SIZE)
    real, narrow, small = node < nodes, column < width, entry < size
    at, group = row * nodes + node, head // (heads // groups)
    sums = tl.load(total + at * heads + head, mask=real, other=0.0)
    both = real[:, None] & real[None, :]
    above = tl.load(seen + row * seen_row + node[:, None] * nodes + node[None, :], mask=both, other=0) != 0
    gap = (sums[:, None] - sums[None, :]).to(tl.float32)
    weight = tl.where(above, tl.exp(tl.where(above, gap, 0.0)), 0.0)  # between branches a gap may be large
    shared = (at * groups + group)[:, None] * size + entry[None, :]
    asked = tl.load(c + shared, mask=real[:, None] & small[None, :], other=0.0)
    given = tl.load(b + shared, mask=real[:, None] & small[None, :], other=0.0)
    own = (at * heads + head)[:, None] * width + column[None, :]
    fed = tl.load(x + own, mask=real[:, None] & narrow[None, :], other=0.0)
    before = ((row * heads + head) * width + column)[:, None] * size + entry[None, :]
    held = tl.load(state + before, mask=narrow[:, None] & small[None, :], other=0.0)
    pairs = tl.dot(asked, tl.trans(given), input_precision="ieee")
    inside = tl.dot(pairs * weight, fed, input_precision="ieee")
    begun = tl.dot(asked, tl.trans(held), input_precision="ieee") * tl.exp(sums.to(tl.float32))[:, None]
    tl.store(out + own, inside + begun, mask=real[:, None] & narrow[None, :])


def scan(branches: Branches, state: Tensor, fed: NodeInputs, c: Tensor) -> Tensor:
    """As `mmspec_ssm.ops.ssd.scan`, of float32."""
    (batch, nodes, groups, size), (heads, width) = c.shape, fed.keys.shape[2:]
    seen, x, b, c, state = (
        each.contiguous() for each in (branches.ancestor.to(c.device), fed.keys, fed.values, c, state)
    )
    out, row = torch.empty_like(x), nodes * nodes if len(seen) > 1 else 0
    with beside(x):
        _scan[(batch, heads)](
            fed.total.contiguous(), seen, row, x, b, c, state, out, nodes, heads, groups, width, size,
            *(max(LEAST, triton.next_power_of_2(side)) for side in (nodes, width, size)),
        )  # fmt: skip
    return out
