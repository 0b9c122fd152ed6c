"""Linear layers in passes over few rows on the CPU: oneDNN's product, over weights that were packed before.

Decoding multiplies large matrices with one or a few rows. MKL, which torch takes in float32, packs a matrix again in
every call; oneDNN can use a copy that was packed before. All layers of a model of 134 M weights, with one thread
(the first row beside other work):

| milliseconds with 1, 2, 3, 4, 8 rows | MKL | oneDNN, packed |
|---|---|---|
| AMD EPYC (Zen 5) | 40, 49, 125, 96, 118 | 33, 19, 39, 35, 49 |
| Intel Xeon | 48, 55, 59, 80, 102 | 61, 62, 68, 55, 62 |

Another product is another rounding, so the choice is a rule, and no clock's: by the processor's maker and the rows of a
pass (`Kernels.fewest`). It is the same in every pass, call and process on one machine; `MMSPEC_PRODUCTS=torch` or
`=packed` forces it, and reports name it. In bfloat16 torch's own product is oneDNN's, too, which packs in every call:
packed weights give the same numbers, sooner.

Packing takes as long as several passes. Over two rows and more, oneDNN's product of a weight that is not packed has the
same numbers; so packing waits there until `PATIENCE` passes could have used it. A packed copy lives as long as its
weight, or until `forget`. It is made again when the weight was written to: torch counts writes, but not those through
`.data`, so `renew` compares checksums when a call begins. Only plain `nn.Linear` layers in float32 or, in a model that
has none of these, in bfloat16 take part, only inside a pass, and only if torch has oneDNN and the copies of a model
stay below `MOST` bytes together. Torch reference: `torch.nn.functional.linear`.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.library import Library
from torch.utils.weak import WeakIdKeyDictionary

from mmspec.core import frozen
from mmspec.hosts.devices import tensor_parallel_group
from mmspec.registry.switches import products

MOST = 2**31  # the most bytes of weights that are packed, for one model
ROWS = 256  # the most rows of a narrow pass, in which oneDNN's product is considered
SMALLEST = 2**14  # the fewest weights of a layer that takes part
FEWEST_ON_INTEL = 4  # the fewest rows with which oneDNN's product is faster than MKL's on processors of MKL's own maker
PATIENCE = 8
"""Passes that do without packed weights before these are made: of SmolLM2 that takes as long as five passes."""

_packed: Any = WeakIdKeyDictionary()
"""`Packed` by weight. This holds the only reference to a copy, so deleting an entry frees its memory."""


@dataclass(frozen=True)
class Packed:
    version: int  # torch's count of writes to the weight when it was packed
    address: int  # the address of its numbers
    checksum: Tensor  # `[out]`: the products of its rows with a fixed vector
    copy: Tensor  # the copy in oneDNN's layout

    def matches(self, weight: Tensor) -> bool:
        """True if the weight is unchanged as far as torch counts writes."""
        return self.version == weight._version and self.address == weight.data_ptr()


def packed_of(weight: Tensor) -> Packed:
    """The packed copy of a weight; made where there is none, or the weight was written to."""
    packed: Packed | None = _packed.get(weight)
    if packed is None or not packed.matches(weight):
        copy = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
        packed = _packed[weight] = Packed(weight._version, weight.data_ptr(), frozen.checksum(weight), copy)
    return packed


def multiplied(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """oneDNN's `x @ weight.T + bias` of a packed or a plain weight: `[..., out]`."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


# A traced pass holds this call, and finds the copy of a weight when it runs: what is made lazily is never traced.
_library = Library("mmspec", "FRAGMENT")
_library.define("packed_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
_library.impl("packed_linear", lambda x, weight, bias: multiplied(x, packed_of(weight).copy, bias), "CPU")
_library.impl("packed_linear", torch.library.fallthrough_kernel, "Autograd")


@torch.library.register_fake("mmspec::packed_linear", lib=_library)
def _outline(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(weight))


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
        if torch.compiler.is_compiling():
            product: Tensor = torch.ops.mmspec.packed_linear(x, weight, bias)
            return product
        kept = self.packed  # read once: another call's beginning may drop it
        packed = kept() if kept is not None and self.weight is weight else None
        if packed is None or not packed.matches(weight):
            packed = packed_of(weight)
            self.weight, self.packed = weight, ref(packed)
        return multiplied(x, packed.copy, bias)

    def unpacked(self, x: Tensor) -> Tensor:
        """The same numbers, without a packed copy where two rows and more can do without."""
        return self(x) if x.numel() == x.shape[-1] else multiplied(x, self.layer.weight, self.layer.bias)

    def __getstate__(self) -> dict[str, Any]:
        return {"layer": self.layer, "weight": None, "packed": None}  # copies and pickles pack anew


class Kernels(tuple[Kernel, ...]):
    """The kernels of one model's layers."""

    waited: int = 0  # passes that would have used packed weights, had there been any

    @property
    def fewest(self) -> int:
        """The fewest rows of a pass that takes oneDNN's product; over `ROWS`: none does."""
        forced = products()
        if not self or forced == "torch":
            return ROWS + 1
        return FEWEST_ON_INTEL if self.single and forced is None and _on_intel() else 1

    @cached_property
    def left(self) -> bool:
        """True if passes of one shape take torch's own product: a compiler bakes so few weights in."""
        return self.single and sum(kernel.layer.weight.nbytes for kernel in self) <= frozen.MOST

    def forwards(self, rows: int, at_once: bool) -> list[Any]:
        """The forward of every layer in a pass that takes oneDNN's product; packing waits for nothing if `at_once`."""
        first = self[0].packed
        there = first is not None and first() is not None
        self.waited = 0 if there else self.waited + 1
        at_once = at_once or rows == 1 or not self.single  # one row has other numbers without a packed copy
        return list(self) if at_once or there or self.waited > PATIENCE else [kernel.unpacked for kernel in self]

    @cached_property
    def single(self) -> bool:
        """True if weights are float32, for which torch has another product."""
        return bool(self) and self[0].layer.weight.dtype == torch.float32

    def named(self, fixed: bool) -> str:
        """The product of passes, in words; "" where it is torch's own. `fixed` as in `narrow`."""
        if self.fewest > ROWS or (fixed and self.left):
            return ""
        return "oneDNN's" if self.fewest == 1 else f"oneDNN's in passes over {self.fewest} rows and more"


def kernels(model: nn.Module) -> Kernels:
    """Kernels for the layers that can use packed weights; none if the model is compiled, too large, or on several
    ranks, whose processors may differ, and round differently.
    """
    if not _available() or getattr(model, "_compiled_call_impl", None) is not None:
        return Kernels()
    if tensor_parallel_group(model) is not None:
        return Kernels()
    plain = [module for module in model.modules() if type(module) is nn.Linear and _plain(module)]
    found = [layer for layer in plain if layer.weight.dtype == torch.float32] or plain
    fits = sum(layer.weight.nbytes for layer in found) <= MOST
    return Kernels(Kernel(layer) for layer in found) if fits else Kernels()


@contextmanager
def narrow(kernels: Kernels, rows: int, fixed: bool = False) -> Iterator[None]:
    """Inside the block, a pass over few rows takes oneDNN's product where that is faster, but in autocast; `fixed`
    passes all have one shape, and may be captured.
    """
    wide = not kernels.fewest <= rows <= ROWS
    if wide or (fixed and kernels.left) or torch.is_autocast_enabled("cpu"):
        yield
        return
    for kernel, forward in zip(kernels, kernels.forwards(rows, fixed), strict=True):
        kernel.layer.__dict__["forward"] = forward
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
        if packed is not None and not torch.equal(packed.checksum, frozen.checksum(weight)):
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


def _on_intel() -> bool:
    return "Intel" in torch.cpu.get_capabilities().get("cpu_name", "")


def _plain(layer: nn.Linear) -> bool:
    """True if a layer is large enough, in a dtype that oneDNN multiplies, with its own forward and counted writes."""
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
