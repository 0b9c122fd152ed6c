"""Linear layers of narrow passes on the CPU: weights laid out once for the passes that decoding makes.

Decoding multiplies large matrices with one row, or a handful. MKL wants whole panels of rows, and lays a matrix out
anew in every call; oneDNN takes it as it was laid out before, which is what `torch.compile` does with frozen weights.
Measured on two threads, all layers of 14 M weights: 1 row 5.3 → 2.6 ms, 2 rows 7.4 → 2.8, 8 rows 7.1 → 3.1, 32 rows
10.3 → 6.0, 128 rows 24 → 18; on one thread 5.3 → 4.2, 7.4 → 4.3, 9.3 → 5.2, 16 → 11, 43 → 35. (W xᵀ, which needs no
copy, is as fast below three rows and slower from there on.) Torch reference: `torch.nn.functional.linear`.

What changes is rounding, as it does from batch to batch. A laid out copy lives as long as its weights do, and is made
anew after these were written to: torch counts writes, but not those through `.data`, so that `renew` looks at the
numbers themselves when a call begins. Only plain float32 `nn.Linear` layers take part, only inside a pass, and only
where torch has oneDNN and the copies stay below `MOST` bytes together.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

ROWS = 256
"""Most rows of a pass that is called narrow."""
SMALLEST = 2**14
"""Weights of the smallest layer for which it pays."""
MOST = 2**31
"""Bytes of a model's layers up to which memory is given for speed."""

_packed: Any = WeakIdKeyDictionary()
"""`Packed` by weight."""


@dataclass(frozen=True)
class Packed:
    """A weight, laid out.

    Attributes:
        version: How many writes to the weight torch had counted.
        place: Where its numbers lay.
        seen: What tells its numbers from others: their products with a fixed vector.
        copy: For oneDNN.
    """

    version: int
    place: int
    seen: Tensor
    copy: Tensor

    def is_of(self, weight: Tensor) -> bool:
        """As far as torch has counted."""
        return self.version == weight._version and self.place == weight.data_ptr()


@dataclass
class Kernel:
    """One layer's product in narrow passes.

    Attributes:
        layer: The layer.
        weight: Its weight when it was last laid out.
        packed: That.
    """

    layer: nn.Linear
    weight: Tensor | None = None
    packed: Packed | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """`layer(x)` for `x [..., in]`: `[..., out]`."""
        parameters: Any = self.layer._parameters  # every layer of every pass comes by here
        packed, weight, bias = self.packed, parameters["weight"], parameters["bias"]
        same = self.weight is weight
        if packed is None or not same or not packed.is_of(weight):
            packed = self._lay_out(weight)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed.copy, bias, "none", [], "")
        return out

    def _lay_out(self, weight: Tensor) -> Packed:
        packed: Packed | None = _packed.get(weight)
        if packed is None or not packed.is_of(weight):
            copy = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
            packed = _packed[weight] = Packed(weight._version, weight.data_ptr(), _seen(weight), copy)
        self.weight, self.packed = weight, packed
        return packed


def kernels(model: nn.Module) -> Sequence[Kernel]:
    """Of the layers that can take part; none where it would not pay or is not ours to change."""
    if not _available() or getattr(model, "_compiled_call_impl", None) is not None:
        return ()
    found = [module for module in model.modules() if type(module) is nn.Linear and _plain(module)]
    fits = 4 * sum(layer.weight.numel() for layer in found) <= MOST
    return [Kernel(layer) for layer in found] if fits else ()


@contextmanager
def narrow(kernels: Sequence[Kernel], rows: int) -> Iterator[None]:
    """Inside the block, a pass over so many rows multiplies with laid out weights."""
    if rows > ROWS:
        yield
        return
    for kernel in kernels:
        kernel.layer.__dict__["forward"] = kernel
    try:
        yield
    finally:
        for kernel in kernels:
            kernel.layer.__dict__.pop("forward", None)


@torch.no_grad()
def renew(kernels: Sequence[Kernel]) -> None:
    """Forget the copies of weights whose numbers changed; to be called when a call begins."""
    for kernel in kernels:
        weight = kernel.layer.weight
        packed: Packed | None = _packed.get(weight)
        if packed is not None and not torch.equal(packed.seen, _seen(weight)):
            del _packed[weight]
        if packed is not kernel.packed or weight not in _packed:
            kernel.weight = kernel.packed = None


def _seen(weight: Tensor) -> Tensor:
    """Tells nearly all states of a weight apart, for one read of it."""
    return weight.detach() @ torch.linspace(1, 2, weight.shape[1])


def _available() -> bool:
    ops = torch.ops.mkldnn
    return torch.backends.mkldnn.is_available() and hasattr(ops, "_linear_pointwise")


def _plain(layer: nn.Linear) -> bool:
    """Large enough, float32, on the CPU, with nobody else's forward, and with a count of the writes to its weights."""
    weight = layer.weight
    ours = weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= SMALLEST
    return ours and type(weight) is nn.Parameter and not weight.is_inference() and "forward" not in layer.__dict__
