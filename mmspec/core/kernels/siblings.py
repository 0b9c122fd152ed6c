"""The walk of `recursive-rejection` in one launch: one program a row tries siblings and holds one residual.

Reference: `mmspec.core.rules.recursive_rejection`. Only nodes that the walk tries are read: a residual costs two passes
over the vocabulary of one row, where the reference moves every row at every node.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.core.kernels import beside
from mmspec.core.kernels.coupling import COIN, RESIDUAL
from mmspec.core.kernels.race import better
from mmspec.core.kernels.random import coin, exponentials, seed_of
from mmspec.core.types import Draft, Verdict

BLOCK, WARPS = 4096, 16
"""Units of the vocabulary that a program takes at a time, and its warps."""


@triton.jit
def _siblings(
    p, q, draft, parent, valid, key, emitted, scratch, drawn, path, length, last, vocab, nodes, deepest, tree_stride,
    p_row, p_node, q_row, q_node, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    seed, round = seed_of(key, row), tl.load(emitted + row) + 1
    p += row.to(tl.int64) * p_row
    q += row.to(tl.int64) * q_row
    scratch += row.to(tl.int64) * 2 * vocab
    rest, total, side = p, 1.0, 0  # r is rest / total; a refusal writes it to the side that it does not read
    here, accepted = row * 0, row * 0
    for child in range(1, nodes):
        at = row * nodes + child
        tried = (tl.load(parent + row * tree_stride + child) == here) & (tl.load(valid + at) != 0)
        if tried:
            x = tl.load(draft + at)
            proposal = q + (child - 1) * q_node
            likelihood = tl.div_rn(tl.load(rest + x), total)
            node = tl.zeros_like(row) + child  # a tensor, in the interpreter too
            if coin(seed, node, COIN, round) * tl.load(proposal + x) < likelihood:
                tl.store(drawn + row * nodes + here, x)
                tl.store(path + row * deepest + accepted, child)
                here, accepted = node, accepted + 1
                rest, total = p + child * p_node, 1.0
            else:
                other, left = scratch + side * vocab, 0.0
                for first in range(0, vocab, BLOCK):
                    unit = first + tl.arange(0, BLOCK)
                    inside = unit < vocab
                    r = tl.div_rn(tl.load(rest + unit, mask=inside, other=0.0), total)
                    residual = tl.maximum(r - tl.load(proposal + unit, mask=inside, other=0.0), 0.0)
                    tl.store(other + unit, residual, mask=inside)
                    left += tl.sum(residual, 0)
                tl.debug_barrier()  # the next unit's probability is read by all threads
                if left > 0:  # else rounding left nothing, and r stays
                    rest, total, side = other, left, 1 - side
    top, winner = -float("inf"), 0
    for first in range(0, vocab, BLOCK):
        unit = first + tl.arange(0, BLOCK)
        weight = tl.div_rn(tl.load(rest + unit, mask=unit < vocab, other=0.0), total)
        value = tl.div_rn(weight, exponentials(seed, first, here, RESIDUAL, round, BLOCK))
        top, winner = better(tl.where((unit < vocab) & (value == value), value, -float("inf")), unit, top, winner)
    tl.store(drawn + row * nodes + here, winner)
    tl.store(length + row, accepted)
    tl.store(last + row, winner)


def try_siblings(draft: Draft, p: Tensor, q: Tensor, key: Tensor, emitted: Tensor) -> Verdict:
    """The verdict on a rooted draft of sampled siblings, with noise that is fresh in every round.

    Args:
        draft: The rooted draft.
        p: `[batch, node, vocab]` float32, the target's probabilities.
        q: `[batch, node - 1, vocab]` float32: what each drafted unit was drawn from.
        key: `[batch, 2]` int64, as in `PhiloxSource`.
        emitted: `[batch]` int64: the units emitted before the round.
    """
    rows, nodes, vocab = p.shape
    index, device = draft.index, p.device
    scratch = torch.empty(rows, 2, vocab, dtype=torch.float32, device=device)
    drawn = torch.zeros(rows, nodes, dtype=torch.int64, device=device)
    path = torch.full((rows, index.deepest), -1, device=device)
    length, last = torch.empty(2, rows, dtype=torch.int64, device=device)
    with beside(p):
        _siblings[(rows,)](
            p, q, draft.units.contiguous(), index.parent.contiguous(), draft.valid.contiguous(), key.contiguous(),
            emitted.contiguous(), scratch, drawn, path, length, last, vocab, nodes, index.deepest,
            nodes if len(index.parent) > 1 else 0, *p.stride()[:2], *q.stride()[:2],
            BLOCK=min(BLOCK, max(4, triton.next_power_of_2(vocab))), num_warps=WARPS,
        )  # fmt: skip
    return Verdict(path, length, last, drawn)
