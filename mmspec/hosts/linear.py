"""Linear layers of narrow passes on the CPU: W xᵀ instead of x Wᵀ.

Decoding multiplies large matrices with one row, or a handful. MKL runs its product of a matrix and one vector on one
thread, and lays x Wᵀ of a few rows out badly; W xᵀ is the same sum in another order and takes a third to two thirds of
the time (measured on two threads: a pass of 14 M weights over 1 node 7.6 → 5.5 ms, 8 nodes 12.1 → 9.0, 32 nodes
18.8 → 16.4; on one thread from about five rows on it does not pay). Torch reference: `torch.nn.functional.linear`.

What changes is rounding, as it does from batch to batch. Only large plain float32 `nn.Linear` layers take part, only
inside a pass, and only where torch calculates with MKL.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS, ROWS_OF_ONE_THREAD = 32, 4
"""Most rows for which it pays: with several threads, with one."""
SMALLEST = 2**17
"""Weights of the smallest layer for which it pays; smaller ones are read from the processor's cache."""


def linears(model: nn.Module) -> Sequence[nn.Linear]:
    """The layers of a model that can take part; none where it would not pay or is not ours to change."""
    if not torch.backends.mkl.is_available() or getattr(model, "_compiled_call_impl", None) is not None:
        return ()
    return [module for module in model.modules() if type(module) is nn.Linear and _plain(module)]


@contextmanager
def narrow(layers: Sequence[nn.Linear], rows: int) -> Iterator[None]:
    """Inside the block, a pass over so many rows multiplies the other way round."""
    if rows > (ROWS if torch.get_num_threads() > 1 else ROWS_OF_ONE_THREAD):
        yield
        return
    for layer in layers:
        layer.__dict__["forward"] = partial(turned, layer)
    try:
        yield
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)


def turned(layer: Any, x: Tensor) -> Tensor:
    """`layer(x)` as W xᵀ, for `x [..., in]` of few rows: `[..., out]`."""
    flat = x.reshape(-1, x.shape[-1])
    rows = len(flat)
    if rows > ROWS:  # a pass over few nodes may hold more rows of another kind
        return F.linear(x, layer.weight, layer.bias)
    more = _kind(rows) - rows
    if more:
        flat = torch.cat([flat, flat.new_zeros(more, flat.shape[1])])
    out = torch.mm(layer.weight, flat.t()).t()[:rows].contiguous()
    if layer.bias is not None:
        out = out + layer.bias
    return out.reshape(*x.shape[:-1], -1)


def _kind(rows: int) -> int:
    """A number of rows that MKL is kind to: no vector, and rather whole blocks of eight than most of one."""
    if rows == 1:
        return 2
    return -(-rows // 8) * 8 if rows % 8 >= (3 if rows > 8 else 7) else rows


def _plain(layer: nn.Linear) -> bool:
    """Large, float32, on the CPU, with nobody else's forward."""
    weight = layer.weight
    fits = weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= SMALLEST
    return fits and type(weight) is nn.Parameter and "forward" not in layer.__dict__
