"""Linear layers of narrow passes on the CPU: weights laid out once for the passes that decoding makes, where it pays.

Decoding multiplies large matrices with one row, or a handful. MKL wants whole panels of rows, and lays a matrix out
anew in every call; oneDNN takes it as it was laid out before, which is what `torch.compile` does with frozen weights.
Which is faster depends on the machine, the layers and the rows: for all layers of 14 M weights, two threads, one
machine went from 5.3 to 2.6 ms with 1 row and from 7.1 to 3.1 with 8, while another was faster without up to 3 rows.
So the two take turns in the passes that decoding makes anyway, until it is known which is faster for layers of these
shapes, this many rows and threads; no pass is made to find out. The first passes are stock's, so that a process that
makes few of them lays nothing out. Torch reference: `torch.nn.functional.linear`.

What changes is rounding, as it does from batch to batch. A laid out copy lives as long as its weights do, or until
`forget`, and is made anew after these were written to: torch counts writes, but not those through `.data`, so that
`renew` looks at the numbers themselves when a call begins. Only plain float32 `nn.Linear` layers take part, only inside
a pass, and only where torch has oneDNN and the copies stay below `MOST` bytes together.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
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
PATIENCE = 4
"""Passes before laid out weights are tried: a layout costs about as much as it saves in twice as many."""
TRIALS = 3
"""Passes that each of the two products is timed for."""
RARELY = 4
"""Passes to one that the product is tried in which lost where there were other numbers of rows."""

_packed: Any = WeakIdKeyDictionary()
"""`Packed` by weight: nothing else holds a copy, so that to forget it here gives its memory back."""
_trials: dict[tuple[Any, ...], dict[int, "Trial"]] = {}
"""By threads and shapes of layers; then by rows, in powers of two."""


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


@dataclass
class Trial:
    """Which of the two products is faster, for passes of about so many rows.

    Attributes:
        likely: What won where there were other numbers of rows: ours (True) or stock's; None: nothing is known yet.
        passes: How many were begun while it was not known here.
        seconds: Shortest pass so far, by product.
        timed: Passes that were timed, by product.
        won: Whether ours is faster; None while it is not known.
    """

    likely: bool | None = None
    passes: int = 0
    seconds: dict[bool, float] = field(default_factory=lambda: {False: inf, True: inf})
    timed: Counter[bool] = field(default_factory=Counter)
    won: bool | None = None

    def turn(self) -> bool:
        """Whether the pass that begins now is ours."""
        if self.won is not None:
            return self.won
        self.passes += 1
        if self.likely is not None:
            return self.likely if self.passes % RARELY else not self.likely
        return self.passes > PATIENCE and (self.passes - PATIENCE) % 2 == 1

    def note(self, ours: bool, seconds: float) -> None:
        """A pass is over. A product's first one may have laid weights out, and is not counted."""
        if self.won is not None:
            return
        self.timed[ours] += 1
        if self.timed[ours] > 1:
            self.seconds[ours] = min(self.seconds[ours], seconds)  # disturbances only ever add time
        if min(self.timed[True], self.timed[False]) > TRIALS:
            self.won = self.seconds[True] < self.seconds[False]


@contextmanager
def narrow(kernels: Kernels, rows: int) -> Iterator[None]:
    """Inside the block, a pass over so many rows multiplies with laid out weights, if that is faster."""
    if not kernels or not 0 < rows <= ROWS:
        yield
        return
    trial = trial_of(kernels, rows)
    ours = trial.turn()
    begun = time.perf_counter()
    if ours:
        with _in_place(kernels):
            yield
    else:
        yield
    if trial.won is None:
        trial.note(ours, time.perf_counter() - begun)
        if trial.won is False:
            forget(kernel.layer.weight for kernel in kernels)  # a model for which it never pays takes no memory


def trial_of(kernels: Kernels, rows: int) -> Trial:
    """What is known of passes over about so many rows: up to the next power of two."""
    size, others = (rows - 1).bit_length(), _trials.setdefault((torch.get_num_threads(), kernels.shapes), {})
    if size not in others:
        others[size] = Trial()
    trial = others[size]
    if trial.won is None and trial.likely is None:
        known = [other for other, each in others.items() if each.won is not None]
        if known:
            trial.likely = others[min(known, key=lambda other: abs(other - size))].won
    return trial


@contextmanager
def _in_place(kernels: Kernels) -> Iterator[None]:
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
        if kernel.packed is not None and (weight not in _packed or packed is not kernel.packed()):
            kernel.weight = kernel.packed = None


def forget(weights: Iterable[Tensor]) -> None:
    """Give back the memory of copies; a pass that wants them lays them out anew."""
    for weight in weights:
        _packed.pop(weight, None)


def _seen(weight: Tensor) -> Tensor:
    """Tells nearly all states of a weight apart, for one read of it."""
    return weight.detach() @ torch.linspace(1, 2, weight.shape[1], dtype=weight.dtype, device=weight.device)


def laid_out(model: nn.Module) -> int:
    """Bytes of the copies that are held of a model's weights now; queries lay nothing out."""
    held = (_packed.get(weight) for weight in model.parameters())
    return sum(torch.ops.mkldnn._nbytes(packed.copy) + packed.seen.nbytes for packed in held if packed is not None)


def _available() -> bool:
    ops = torch.ops.mkldnn
    return torch.backends.mkldnn.is_available() and hasattr(ops, "_linear_pointwise")


def _plain(layer: nn.Linear) -> bool:
    """Large enough, float32, on the CPU, with nobody else's forward, and with a count of the writes to its weights."""
    weight = layer.weight
    ours = weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= SMALLEST
    return ours and type(weight) is nn.Parameter and not weight.is_inference() and "forward" not in layer.__dict__
