"""Linear layers in passes over few rows on the CPU: weights packed once by oneDNN, where that is faster.

Decoding multiplies large matrices with one or a few rows. MKL packs a matrix again in every call; oneDNN can use a
copy that was packed before, which is what `torch.compile` does with frozen weights. Which of the two is faster depends
on the machine, the layers and the number of rows: for all layers of a model of 14 M weights and two threads, one
machine went from 5.3 to 2.6 ms with 1 row and from 7.1 to 3.1 ms with 8 rows, while another was slower with packed
weights up to 3 rows. So the two are timed in turns in the passes that decoding makes anyway, until it is known which
is faster for these layer shapes, rows and threads. Packing takes as long as several passes, so it waits until there
were `PATIENCE` passes that could have used it: few passes pack nothing. Torch reference: `torch.nn.functional.linear`.

Packed weights change the rounding, as another batch size does; so in bfloat16, where rounding decides what is written,
no clock may choose. There torch's own product is oneDNN's, too, which packs in every call, so that packed weights can
only be faster: they are used from the first pass on.

A packed copy lives as long as its weight, or until `forget`. It is made again when the weight was written to: torch
counts writes, but not those through `.data`, so `renew` compares checksums when a call begins. Only plain `nn.Linear`
layers in float32 or, in a model that has none of these, in bfloat16 take part, only inside a pass, and only if torch
has oneDNN and the copies of a model stay below `MOST` bytes together.
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

from mmspec.core.frozen import checksum
from mmspec.hosts.devices import tensor_parallel_group

MOST = 2**31
"""The most bytes of weights that are packed, for one model."""
ROWS = 256
"""The most rows of a narrow pass, in which packed weights are considered."""
SMALLEST = 2**14
"""The fewest weights of a layer that is packed."""
PATIENCE = 16
"""Passes that do without packed weights before these are made: of SmolLM2 that takes as long as five passes."""
TRIALS = 3
"""The number of passes that each of the two products is timed in."""
RARELY = 4
"""The product that was slower for other numbers of rows is tried in one of so many passes."""

_packed: Any = WeakIdKeyDictionary()
"""`Packed` by weight. This holds the only reference to a copy, so deleting an entry frees its memory."""
_trials: dict[tuple[Any, ...], dict[int, "Trial"]] = {}
"""Trials by number of threads and layer shapes, then by `_size` of the number of rows."""


@dataclass(frozen=True)
class Packed:
    version: int  # torch's count of writes to the weight when it was packed
    address: int  # the address of its numbers
    checksum: Tensor  # `[out]`: the products of its rows with a fixed vector
    copy: Tensor  # the copy in oneDNN's layout

    def matches(self, weight: Tensor) -> bool:
        """Whether the weight is unchanged as far as torch counts writes."""
        return self.version == weight._version and self.address == weight.data_ptr()


@dataclass
class Kernel:
    """The forward of one layer over packed weights."""

    layer: nn.Linear
    weight: Tensor | None = None  # the layer's weight when it was last packed
    packed: ref[Packed] | None = None  # A weak reference to the packed weight

    def __call__(self, x: Tensor) -> Tensor:
        """`layer(x)` for `x [..., in]`: `[..., out]`."""
        parameters: Any = self.layer._parameters  # faster than attributes; every layer of every pass runs this
        weight, bias = parameters["weight"], parameters["bias"]
        packed = self.packed() if self.packed is not None and self.weight is weight else None
        if packed is None or not packed.matches(weight):
            packed = self._pack(weight)
        return torch.ops.mkldnn._linear_pointwise(x, packed.copy, bias, "none", [], "")

    def _pack(self, weight: Tensor) -> Packed:
        packed: Packed | None = _packed.get(weight)
        if packed is None or not packed.matches(weight):
            copy = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
            packed = _packed[weight] = Packed(weight._version, weight.data_ptr(), checksum(weight), copy)
        self.weight, self.packed = weight, ref(packed)
        return packed


class Kernels(tuple[Kernel, ...]):
    """The kernels of one model's layers."""

    waited: int = 0  # passes that would have used packed weights, had there been any

    def ask_for_packed(self) -> bool:
        """Ask for packed weights in a pass that would use them: whether there are any, or it is time to make them."""
        first = self[0].packed
        there = first is not None and first() is not None
        self.waited = 0 if there else self.waited + 1
        return there or self.waited > PATIENCE

    @cached_property
    def shapes(self) -> tuple[torch.Size, ...]:
        """The shapes of the layers' weights; cached, because every pass asks for them."""
        return tuple(kernel.layer.weight.shape for kernel in self)

    @cached_property
    def timed(self) -> bool:
        """Whether it is measured which product is faster; in half precision packed weights are always used."""
        return not self or self[0].layer.weight.dtype == torch.float32


def kernels(model: nn.Module) -> Kernels:
    """Kernels for the layers that can use packed weights; none if the model is compiled or too large.

    Likewise if it runs on several ranks: they would choose by times of their own, and round differently.
    """
    if not _available() or getattr(model, "_compiled_call_impl", None) is not None:
        return Kernels()
    if tensor_parallel_group(model) is not None:
        return Kernels()
    plain = [module for module in model.modules() if type(module) is nn.Linear and _plain(module)]
    found = [layer for layer in plain if layer.weight.dtype == torch.float32] or plain
    fits = sum(layer.weight.nbytes for layer in found) <= MOST
    return Kernels(Kernel(layer) for layer in found) if fits else Kernels()


@dataclass
class Trial:
    """The measurement of which product is faster for passes over about so many rows.

    True stands for the product with packed weights, False for torch's own.
    """

    likely: bool | None = None  # the faster product for other numbers of rows; None if that is not known yet
    passes: int = 0  # the passes that began while the result was not known
    # The shortest pass so far, by product
    seconds: dict[bool, float] = field(default_factory=lambda: {False: inf, True: inf})
    timed: Counter[bool] = field(default_factory=Counter)  # the number of timed passes, by product
    won: bool | None = None  # the faster product; None while it is not known

    def turn(self) -> bool:
        """Whether the pass that begins now uses packed weights."""
        if self.won is not None:
            return self.won
        self.passes += 1
        if self.likely is not None:
            return self.likely if self.passes % RARELY else not self.likely
        return self.passes % 2 == 1

    def note(self, ours: bool, seconds: float) -> None:
        """Record the time of a pass. A product's first pass may have packed weights, and is not counted."""
        if self.won is not None:
            return
        self.timed[ours] += 1
        if self.timed[ours] > 1:
            self.seconds[ours] = min(self.seconds[ours], seconds)  # disturbances only ever add time
        if min(self.timed[True], self.timed[False]) > TRIALS:
            self.won = self.seconds[True] < self.seconds[False]


@contextmanager
def narrow(kernels: Kernels, rows: int) -> Iterator[None]:
    """Inside the block, a pass over few rows uses packed weights if that is faster, or to find out; not in autocast."""
    if not kernels or not 0 < rows <= ROWS or torch.is_autocast_enabled("cpu"):
        yield
        return
    if not kernels.timed:
        with _in_place(kernels):
            yield
        return
    trial = trial_of(kernels, rows)
    ours = trial.turn() and kernels.ask_for_packed()
    begun = time.perf_counter()
    if ours:
        with _in_place(kernels):
            yield
    else:
        yield
    if trial.won is None:
        trial.note(ours, time.perf_counter() - begun)
        if all(other.won is False for other in _trials[_key(kernels)].values()):
            forget(kernel.layer.weight for kernel in kernels)  # free the copies that will not be used


def trial_of(kernels: Kernels, rows: int) -> Trial:
    """The trial for passes over about `rows` rows."""
    size, others = _size(rows), _trials.setdefault(_key(kernels), {})
    if size not in others:
        others[size] = Trial()
    trial = others[size]
    if trial.won is None and trial.likely is None:
        known = [other for other, each in others.items() if each.won is not None]
        if known:
            trial.likely = others[min(known, key=lambda other: abs(other - size))].won
    return trial


def _key(kernels: Kernels) -> tuple[Any, ...]:
    return torch.get_num_threads(), kernels.shapes


def _size(rows: int) -> int:
    """The number of rows up to 4, where MKL changes its way with each; beyond, rounded up to a power of two."""
    return rows if rows <= 4 else 2 + (rows - 1).bit_length()


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
    """Drop the packed copies of weights whose numbers changed; targets do this when a call begins."""
    for kernel in kernels:
        weight = kernel.layer.weight
        packed: Packed | None = _packed.get(weight)
        if packed is not None and not torch.equal(packed.checksum, checksum(weight)):
            del _packed[weight]
        if kernel.packed is not None and (weight not in _packed or packed is not kernel.packed()):
            kernel.weight = kernel.packed = None


def forget(weights: Iterable[Tensor]) -> None:
    """Free the packed copies of weights; a later pass packs them again if it needs them."""
    for weight in weights:
        _packed.pop(weight, None)


def laid_out(model: nn.Module) -> int:
    """Bytes of the packed copies of a model's weights that exist now; nothing is packed by asking."""
    copies = (_packed.get(weight) for weight in model.parameters())
    return sum(torch.ops.mkldnn._nbytes(each.copy) + each.checksum.nbytes for each in copies if each is not None)


def _available() -> bool:
    ops = torch.ops.mkldnn
    return torch.backends.mkldnn.is_available() and hasattr(ops, "_linear_pointwise")


def _plain(layer: nn.Linear) -> bool:
    """Whether a layer is large enough, in a dtype that oneDNN multiplies, with its own forward and counted writes."""
    weight = layer.weight
    half = weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    known = weight.device.type == "cpu" and (weight.dtype == torch.float32 or half)
    return (
        known
        and weight.numel() >= SMALLEST
        and type(weight) is nn.Parameter
        and not weight.is_inference()
        and "forward" not in layer.__dict__
    )
