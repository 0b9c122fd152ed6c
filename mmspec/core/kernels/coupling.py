"""The coupled draw of a chain in one launch: keep the drafted unit, or an exponential race over the residual (p - q)+.

Reference: `Categorical.couple` at nodes that have a drafted child, `Categorical.draw` at all others. A node that keeps
its unit reads two numbers and no vocabulary.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.core.kernels import beside
from mmspec.core.kernels.race import BLOCK, SPAN, Winners, better
from mmspec.core.kernels.random import coin, exponentials, seed_of
from mmspec.core.noise import Substream

UNIT, COIN, RESIDUAL = (tl.constexpr(int(s)) for s in (Substream.UNIT, Substream.COIN, Substream.RESIDUAL))


@triton.jit
def residual_value(residual, p, e):
    """The numbers that decide a race over a residual. Where there is none at all, by rounding, the race is one over p.

    A unit outside the residual counts -E / p, less than any in it; the order of these is that of p / E.
    """
    outside = tl.where(p > 0, -tl.div_rn(e, tl.where(p > 0, p, 1.0)), -float("inf"))
    return tl.where(residual > 0, tl.div_rn(residual, e), outside)


@triton.jit
def _couple(
    p, q, drafted, follows, key, emitted, values, units, vocab, nodes, p_row, p_node, q_row, q_node,
    PARTS: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program, part = tl.program_id(0), tl.program_id(1)
    row, node = program // nodes, program % nodes
    seed, round = seed_of(key, row), tl.load(emitted + row) + 1
    p += row.to(tl.int64) * p_row + node * p_node
    q += row.to(tl.int64) * q_row + node * q_node
    inner = node < nodes - 1
    edge = row * (nodes - 1) + node
    follow = tl.load(follows + edge, mask=inner, other=0) != 0
    x = tl.load(drafted + edge, mask=inner, other=0)
    likelihood = tl.load(q + x, mask=follow, other=0.0)
    keep = follow & (coin(seed, node, COIN, round) * likelihood < tl.load(p + x))
    top, winner, broken = -float("inf"), 0, 0
    end = tl.where(keep, 0, tl.minimum(part * SPAN + SPAN, vocab))
    substream, proposed = tl.where(follow, RESIDUAL, UNIT), tl.where(follow, vocab, 0)
    for first in range(part * SPAN, end, BLOCK):
        unit = first + tl.arange(0, BLOCK)
        here = unit < vocab
        p_unit = tl.load(p + unit, mask=here, other=0.0)
        residual = tl.maximum(p_unit - tl.load(q + unit, mask=unit < proposed, other=0.0), 0.0)
        broken += tl.sum((p_unit != p_unit).to(tl.int32), 0)
        e = exponentials(seed, first, node, substream, round, BLOCK)
        value = tl.where(follow, residual_value(residual, p_unit, e), tl.div_rn(p_unit, e))
        top, winner = better(tl.where(here & (value == value), value, -float("inf")), unit, top, winner)
    top = tl.where(keep, tl.where(part == 0, float("inf"), -float("inf")), top)
    tl.store(values + program * PARTS + part, tl.where(broken > 0, float("nan"), top))
    tl.store(units + program * PARTS + part, tl.where(keep, x, winner))


def couple(p: Tensor, q: Tensor, key: Tensor, emitted: Tensor, drafted: Tensor, follows: Tensor) -> Winners:
    """The races of all nodes of a chain, with noise that is fresh in every round.

    Args:
        p: `[batch, node, vocab]` float32, the target's probabilities.
        q: `[batch, node - 1, vocab]` float32: what each drafted unit was drawn from.
        key: `[batch, 2]` int64, as in `PhiloxSource`.
        emitted: `[batch]` int64: the units emitted before the round.
        drafted: `[batch, node - 1]` int64.
        follows: `[batch, node - 1]` bool: whether a node's draw is coupled with its drafted child.
    """
    rows, nodes, vocab = p.shape
    parts = triton.cdiv(vocab, SPAN)
    values = torch.empty(rows, nodes, parts, dtype=torch.float32, device=p.device)
    units = torch.empty(rows, nodes, parts, dtype=torch.int64, device=p.device)
    with beside(p):
        _couple[(rows * nodes, parts)](
            p, q, drafted.contiguous(), follows.contiguous(), key.contiguous(), emitted.contiguous(), values, units,
            vocab, nodes, *p.stride()[:2], *q.stride()[:2],
            PARTS=parts, SPAN=SPAN, BLOCK=min(BLOCK, max(4, triton.next_power_of_2(vocab))),
        )  # fmt: skip
    return Winners(values, units)
