"""The numbers that block verification computes over the vocabulary: the mass of every residual, and one race a row.

Reference: `mmspec.core.rules.block`. Its coins, weights and stopping nodes are small, and stay in torch.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.core.kernels import beside
from mmspec.core.kernels.coupling import RESIDUAL, residual_value
from mmspec.core.kernels.race import BLOCK, SPAN, better
from mmspec.core.kernels.random import exponentials, seed_of


@triton.jit
def _masses(
    p, q, weight, sums, vocab, edges, p_row, p_node, q_row, q_node,
    PARTS: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program, part = tl.program_id(0), tl.program_id(1)
    row, node = program // edges, program % edges
    w = tl.load(weight + program)
    p += row.to(tl.int64) * p_row + node * p_node
    q += row.to(tl.int64) * q_row + node * q_node
    mass = 0.0
    for first in range(part * SPAN, tl.minimum(part * SPAN + SPAN, vocab), BLOCK):
        unit = first + tl.arange(0, BLOCK)
        here = unit < vocab
        residual = w * tl.load(p + unit, mask=here, other=0.0) - tl.load(q + unit, mask=here, other=0.0)
        mass += tl.sum(tl.maximum(residual, 0.0), 0)
    tl.store(sums + program * PARTS + part, mass)


@triton.jit
def _race_at(
    p, q, weight, leaf, proposed, key, emitted, values, units, vocab, p_row, p_node, q_row, q_node,
    PARTS: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, part = tl.program_id(0), tl.program_id(1)
    seed, round, node = seed_of(key, row), tl.load(emitted + row) + 1, tl.load(leaf + row)
    p += row.to(tl.int64) * p_row + node * p_node
    q += row.to(tl.int64) * q_row + node * q_node
    w, follow = tl.load(weight + row), tl.load(proposed + row) != 0
    read = tl.where(follow, vocab, 0)  # the last node has no proposal
    top, winner = -float("inf"), 0
    for first in range(part * SPAN, tl.minimum(part * SPAN + SPAN, vocab), BLOCK):
        unit = first + tl.arange(0, BLOCK)
        here = unit < vocab
        p_unit = tl.load(p + unit, mask=here, other=0.0)
        residual = tl.maximum(w * p_unit - tl.load(q + unit, mask=unit < read, other=0.0), 0.0)
        e = exponentials(seed, first, node, RESIDUAL, round, BLOCK)
        value = tl.where(follow, residual_value(residual, p_unit, e), tl.div_rn(p_unit, e))
        top, winner = better(tl.where(here & (value == value), value, -float("inf")), unit, top, winner)
    tl.store(values + row * PARTS + part, top)
    tl.store(units + row * PARTS + part, winner)


@dataclass(frozen=True)
class Residuals:
    """The residuals (w p - q)+ of a chain."""

    p: Tensor  # `[batch, node, vocab]` float32, the target's probabilities
    q: Tensor  # `[batch, node - 1, vocab]` float32: what each drafted unit was drawn from
    key: Tensor  # `[batch, 2]` int64, as in `PhiloxSource`
    emitted: Tensor  # `[batch]` int64: the units emitted before the round

    def masses(self, weight: Tensor) -> Tensor:
        """The sum of every residual, `[batch, node - 1]`, given w, `weight [batch, node - 1]`."""
        rows, edges, vocab = self.q.shape
        sums, settings = _cut(vocab, self.p.device, rows, edges)
        with beside(self.p):
            _masses[(rows * edges, settings["PARTS"])](
                self.p, self.q, weight.contiguous(), sums, vocab, edges, *self.p.stride()[:2], *self.q.stride()[:2],
                **settings,
            )  # fmt: skip
        return sums.sum(-1)

    def draw(self, weight: Tensor, leaf: Tensor, follows: Tensor) -> Tensor:
        """A draw from the residual at `leaf`, or from p where nothing follows; all arguments and it are `[batch]`."""
        vocab = self.p.shape[2]
        values, settings = _cut(vocab, self.p.device, len(leaf))
        units = torch.empty(values.shape, dtype=torch.int64, device=values.device)
        with beside(self.p):
            _race_at[(len(leaf), settings["PARTS"])](
                self.p, self.q, weight.contiguous(), leaf.contiguous(), follows.contiguous(), self.key.contiguous(),
                self.emitted.contiguous(), values, units, vocab, *self.p.stride()[:2], *self.q.stride()[:2], **settings,
            )  # fmt: skip
        return units.gather(1, values.argmax(-1, keepdim=True))[:, 0]


def _cut(vocab: int, device: torch.device, *shape: int) -> tuple[Tensor, dict[str, int]]:
    """A float32 tensor `[*shape, part]`, and how the vocabulary is cut."""
    parts = triton.cdiv(vocab, SPAN)
    settings = {"PARTS": parts, "SPAN": SPAN, "BLOCK": min(BLOCK, max(4, triton.next_power_of_2(vocab)))}
    return torch.empty(*shape, parts, dtype=torch.float32, device=device), settings
