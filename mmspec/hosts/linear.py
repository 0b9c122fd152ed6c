"""Linear layers of narrow passes on the CPU: weights laid out once for the passes that decoding makes, where it pays.

Decoding multiplies large matrices with one row, or a handful. MKL wants whole panels of rows, and lays a matrix out
anew in every call; oneDNN takes it as it was laid out before, which is what `torch.compile` does with frozen weights.
Which is faster depends on the machine, the layers and the rows: for all layers of 14 M weights, two threads, one
machine went from 5.3 to 2.6 ms with 1 row and from 7.1 to 3.1 with 8, while another was faster without up to 3 rows.
So the two are timed, once for layers of these shapes, this many rows and threads. Torch reference:
`torch.nn.functional.linear`.

What changes is rounding, as it does from batch to batch. A laid out copy lives as long as its weights do, or until
`forget`, and is made anew after these were written to: torch counts writes, but not those through `.data`, so that
`renew` looks at the numbers themselves when a call begins. Only plain float32 `nn.Linear` layers take part, only inside
a pass, and only where torch has oneDNN and the copies stay below `MOST` bytes together.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

ROWS = 256
"""Most rows of a pass that is called narrow."""
SMALLEST = 2**14
"""Weights of the smallest layer for which it pays."""
MOST = 2**31
"""Bytes of a model's layers up to which memory is given for speed."""
TRIALS = 3
"""Sweeps over a model's layers that each of the two products is timed for."""

_packed: Any = WeakIdKeyDictionary()
"""`Packed` by weight: nothing else holds a copy, so that to forget it here gives its memory back."""
_timed: dict[tuple[Any, ...], bool] = {}
"""By rows, threads and shapes of layers: whether laid out weights were the faster."""


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
        packed: That, if it is still there.
    """

    layer: nn.Linear
    weight: Tensor | None = None
    packed: ref[Packed] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """`layer(x)` for `x [..., in]`: `[..., out]`."""
        parameters: Any = self.layer._parameters  # every layer of every pass comes by here
        weight, bias = parameters["weight"], parameters["bias"]
        packed = self.packed() if self.packed is not None and self.weight is weight else None
        if packed is None or not packed.is_of(weight):
            packed = self._lay_out(weight)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed.copy, bias, "none", [], "")
        return out

    def _lay_out(self, weight: Tensor) -> Packed:
        packed: Packed | None = _packed.get(weight)
        if packed is None or not packed.is_of(weight):
            copy = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
            packed = _packed[weight] = Packed(weight._version, weight.data_ptr(), _seen(weight), copy)
        self.weight, self.packed = weight, ref(packed)
        return packed


class Kernels(tuple[Kernel, ...]):
    """Those of one model."""

    @cached_property
    def shapes(self) -> tuple[torch.Size, ...]:
        """Of their weights; every pass asks."""
        return tuple(kernel.layer.weight.shape for kernel in self)


def kernels(model: nn.Module) -> Kernels:
    """Of the layers that can take part; none where it would not pay or is not ours to change."""
    if not _available() or getattr(model, "_compiled_call_impl", None) is not None:
        return Kernels()
    found = [module for module in model.modules() if type(module) is nn.Linear and _plain(module)]
    fits = 4 * sum(layer.weight.numel() for layer in found) <= MOST
    return Kernels(Kernel(layer) for layer in found) if fits else Kernels()


@contextmanager
def narrow(kernels: Kernels, rows: int) -> Iterator[None]:
    """Inside the block, a pass over so many rows multiplies with laid out weights, if that is faster."""
    if not kernels or not 0 < rows <= ROWS or not pays(kernels, rows):
        yield
        return
    for kernel in kernels:
        kernel.layer.__dict__["forward"] = kernel
    try:
        yield
    finally:
        for kernel in kernels:
            kernel.layer.__dict__.pop("forward", None)


def pays(kernels: Kernels, rows: int) -> bool:
    """Whether laid out weights are faster for about so many rows; timed when first asked, for the next power of two.

    Copies that lost are forgotten: a model for which it never pays takes no memory for it.
    """
    rows = 1 << (rows - 1).bit_length()
    key = (rows, torch.get_num_threads(), kernels.shapes)
    if key not in _timed:
        layers: list[Callable[[Tensor], Tensor]] = [kernel.layer for kernel in kernels]
        with torch.inference_mode():
            given = [torch.ones(rows, kernel.layer.in_features) for kernel in kernels]
            trials = [(_sweep(layers, given), _sweep(kernels, given)) for _ in range(TRIALS + 1)][1:]
        stock, ours = map(min, zip(*trials, strict=True))
        _timed[key] = ours < stock
        if not _timed[key]:
            for kernel in kernels:
                _packed.pop(kernel.layer.weight, None)
                kernel.weight = kernel.packed = None
    return _timed[key]


@torch.no_grad()
def renew(kernels: Sequence[Kernel]) -> None:
    """Forget the copies of weights whose numbers changed; to be called when a call begins."""
    for kernel in kernels:
        weight = kernel.layer.weight
        packed: Packed | None = _packed.get(weight)
        if packed is not None and not torch.equal(packed.seen, _seen(weight)):
            del _packed[weight]
        if kernel.packed is not None and (weight not in _packed or packed is not kernel.packed()):
            kernel.weight = kernel.packed = None


def forget(model: nn.Module) -> None:
    """Give back the memory of a model's copies; a pass that wants them lays them out anew."""
    for weight in model.parameters():
        _packed.pop(weight, None)


def _sweep(layers: Sequence[Callable[[Tensor], Tensor]], given: Sequence[Tensor]) -> float:
    """Seconds of all layers, one after another, so that a weight is as far away as it is in a pass."""
    begun = time.perf_counter()
    for layer, x in zip(layers, given, strict=True):
        layer(x)
    return time.perf_counter() - begun


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
