"""Parts of a layer in one launch each: RMSNorm, alone or of a sum, a gated activation, and rotary embedding.

References: the forward of transformers' `LlamaRMSNorm`, `silu(gate) * up`, and `apply_rotary_pos_emb`. Results are
theirs up to the rounding of what is in between, which Triton may leave in float32. A row is computed alike whatever
else there is.
"""

import triton
import triton.language as tl
from torch import Tensor

from mmspec.core.kernels import beside

BLOCK = 1024
"""Numbers of a row that one program gates."""


@triton.jit
def _normalise(
    x, added, total, weight, out, eps, width, inner, outer_row, inner_row, SUM: tl.constexpr, BLOCK: tl.constexpr
):
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = column < width
    kept = tl.load(x + row // inner * outer_row + row % inner * inner_row + column, mask=inside, other=0.0)
    if SUM:
        kept = kept.to(tl.float32) + tl.load(added + row * width + column, mask=inside, other=0.0).to(tl.float32)
        kept = kept.to(x.dtype.element_ty)
        tl.store(total + row * width + column, kept, mask=inside)
    value = kept.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / width + eps)
    normal = (value * scale).to(x.dtype.element_ty).to(tl.float32)
    scaled = normal * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, scaled.to(x.dtype.element_ty), mask=inside)


def normalised(
    x: Tensor, weight: Tensor, eps: float, added: Tensor | None = None, total: Tensor | None = None
) -> Tensor:
    """RMSNorm of states `[…, width]`, by a weight `[width]` of their dtype; or of their sum with `added`, which is
    written to `total`: then all are dense.
    """
    width, steps = x.shape[-1], x.stride()
    even = all(steps[axis] == steps[axis + 1] * x.shape[axis + 1] for axis in range(x.dim() - 3))
    if x.dim() < 3 or not even or steps[-1] != 1:  # heads may be parts of longer rows
        x = x.contiguous()
    heads = (x.shape[-2], *x.stride()[-3:-1]) if x.dim() > 2 else (1, width, 0)
    out, own = x.new_empty(x.shape), added is None
    with beside(x):
        _normalise[(x.numel() // width,)](
            x, x if own else added, x if own else total, weight, out, eps, width, *heads, SUM=not own,
            BLOCK=triton.next_power_of_2(width),
        )  # fmt: skip
    return out


@triton.jit
def _gate(x, active, out, width, BLOCK: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(x + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + (row * 2 + 1) * width + column, mask=inside, other=0.0).to(tl.float32)
    value = (gate / (1.0 + tl.exp(-gate))).to(x.dtype.element_ty)
    tl.store(active + row * width + column, value, mask=inside)
    tl.store(out + row * width + column, (value.to(tl.float32) * up).to(x.dtype.element_ty), mask=inside)


def gated(x: Tensor, active: Tensor) -> Tensor:
    """silu(gate) · up of `x [..., 2 · width]`, which has gate and up side by side; silu(gate) is written to `active
    [..., width]`. All are dense.
    """
    out, width = active.new_empty(active.shape), active.shape[-1]
    block = min(BLOCK, triton.next_power_of_2(width))
    with beside(x):
        _gate[(out.numel() // width, triton.cdiv(width, block))](x, active, out, width, BLOCK=block)
    return out


@triton.jit
def _turn(x, cos, sin, out, HALF, BLOCK: tl.constexpr):
    """Turn one head of one node: (x · cos) + (half turned x · sin), of rounded products if Triton keeps them so."""
    column = tl.arange(0, BLOCK)
    inside = column < HALF
    low, high = tl.load(x + column, mask=inside, other=0.0), tl.load(x + HALF + column, mask=inside, other=0.0)
    low, high = low.to(tl.float32), high.to(tl.float32)
    c = tl.load(cos + column, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin + column, mask=inside, other=0.0).to(tl.float32)
    first = (low * c).to(x.dtype.element_ty).to(tl.float32) + (-high * s).to(x.dtype.element_ty).to(tl.float32)
    c = tl.load(cos + HALF + column, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin + HALF + column, mask=inside, other=0.0).to(tl.float32)
    second = (high * c).to(x.dtype.element_ty).to(tl.float32) + (low * s).to(x.dtype.element_ty).to(tl.float32)
    tl.store(out + column, first.to(x.dtype.element_ty), mask=inside)
    tl.store(out + HALF + column, second.to(x.dtype.element_ty), mask=inside)


@triton.jit
def _rotate(
    q, k, cos, sin, q_out, k_out, nodes, q_heads, k_heads,
    q_row, q_head, q_node, k_row, k_head, k_node, turn_row, turn_node, HALF, BLOCK: tl.constexpr,
):  # fmt: skip
    row, node, head = tl.program_id(0) // nodes, tl.program_id(0) % nodes, tl.program_id(1)
    cos += row * turn_row + node * turn_node
    sin += row * turn_row + node * turn_node
    if head < q_heads:
        start = q + row.to(tl.int64) * q_row + head * q_head + node * q_node
        _turn(start, cos, sin, q_out + ((row * q_heads + head).to(tl.int64) * nodes + node) * 2 * HALF, HALF, BLOCK)
    else:
        head -= q_heads
        start = k + row.to(tl.int64) * k_row + head * k_head + node * k_node
        _turn(start, cos, sin, k_out + ((row * k_heads + head).to(tl.int64) * nodes + node) * 2 * HALF, HALF, BLOCK)


def rotated(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary embedding of queries and keys, in halves.

    Args:
        q: `[batch, heads, node, width]`; the last axis is dense.
        k: `[batch, key heads, node, width]`; likewise.
        cos: `[batch, node, width]`, or of one row for all, of the states' dtype; dense.
        sin: Likewise.
    """
    batch, heads, nodes, width = q.shape
    q_out, k_out = (x.new_empty(x.shape) for x in (q, k))
    row = cos.stride(0) if len(cos) > 1 else 0
    with beside(q):
        _rotate[(batch * nodes, heads + k.shape[1])](
            q, k, cos, sin, q_out, k_out, nodes, heads, k.shape[1],
            *q.stride()[:3], *k.stride()[:3], row, cos.stride(1), width // 2, BLOCK=triton.next_power_of_2(width // 2),
        )  # fmt: skip
    return q_out, k_out
