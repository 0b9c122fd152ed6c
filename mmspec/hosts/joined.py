"""Operations of a recorded pass that follow from one another, in one launch: products of one input, an activation and
its gate, a sum and its norm.

A mode of torch's sees the operations that a model's code calls, so that it matters neither how its layers are written
nor what hooks, adapters or quantised layers do in between: an operation that is not part of such a group runs as it is.
What a pass may read later, such as the sum beside its norm, is written, too.

Weights that multiply one input are copied into one matrix. The model's own stay where they are, because their addresses
are known elsewhere: to graphs of others, to optimisers, to what was compiled for the model. The copy is renewed when a
call begins, and freed with the rounds.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

MOST = 2**31
"""The most bytes of weights that are copied, for one model: the products of larger ones take longer than a launch."""


class Factor(NamedTuple):
    """One product of a pass: an input, and a weight."""

    x: Tensor  # the input, `[..., in]`
    writes: int  # to the input, as torch counts them
    weight: nn.Parameter  # `[out, in]`
    bias: nn.Parameter | None  # `[out]`


class Product:
    """The product of one input with the weights of several factors, of which all have a bias, or none has."""

    def __init__(self, factors: Sequence[Factor]) -> None:
        weights: list[Tensor] = [factor.weight for factor in factors]
        biases: list[Tensor] = [factor.bias for factor in factors if factor.bias is not None]
        self.sizes = [len(weight) for weight in weights]
        self._weight, self._bias = torch.cat(weights), torch.cat(biases) if biases else None
        self._copies, self._own = list[Tensor](), [*weights, *biases]
        for packed in (self._weight, *(() if self._bias is None else (self._bias,))):
            self._copies += packed.split(self.sizes)

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)

    @torch.no_grad()
    def renew(self) -> None:
        """Copy the weights again, whoever wrote to them."""
        torch._foreach_copy_(self._copies, self._own)


_products: WeakValueDictionary[Any, Product] = WeakValueDictionary()
"""Products by their factors, which they keep alive: all rounds of a model share them."""


def product_of(factors: Sequence[Factor]) -> Product:
    """The product with these factors, which is made where there is none."""
    own = [each for factor in factors for each in (factor.weight, factor.bias) if each is not None]
    key = tuple((id(each), each.dtype, each.device) for each in own)
    known = _products.get(key)
    if known is None:
        known = _products[key] = Product(factors)
    return known


class Later(NamedTuple):
    """A result that the next operation may compute together with its own; before any other one it is computed."""

    out: Tensor  # where it belongs
    sum: bool  # whether it is `a + b`; else it is the activation of `a`, by which `b` is going to be multiplied
    a: Tensor
    b: Tensor

    def compute(self) -> None:
        if self.sum:
            torch.add(self.a, self.b, out=self.out)
        else:
            torch.ops.aten.silu.out(self.a, out=self.out)


class Joined(TorchFunctionMode):
    """The mode of a model's passes over one cache, in `dtype`. Whoever runs them holds the model's lock."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        self._places: dict[int, tuple[Product, int]] = {}  # by the id of a weight: its product, and its place there
        self._watched: list[Factor] | None = None  # the factors of a pass from which this is learnt
        self._forget()

    def _forget(self) -> None:
        self._latest: tuple[Product, Tensor, int] | None = None  # the latest product, its input, and the writes to it
        self._parts: list[Tensor | None] = []  # of its result; None where it was given away
        self._gated: tuple[Tensor, Tensor, Tensor] | None = None  # a result of two parts of one size, and the parts
        self._later: Later | None = None

    @torch.inference_mode(False)
    @torch.no_grad()
    def learn(self, run: Callable[[], object]) -> None:
        """Learn from a pass of the model, `run`, which weights multiply one input. None do if their copies were too
        large, or if the model's code cannot take parts of a product, whose rows do not lie one behind the other.
        """
        self._watched = watched = list[Factor]()
        alike: dict[Any, dict[int, Factor]] = {}
        try:
            run()
            self._watched = None
            for each in watched:
                alike.setdefault((id(each.x), each.writes, each.bias is None), {})[id(each.weight)] = each
            groups = [[*group.values()] for group in alike.values() if len(group) > 1]
            if sum(factor.weight.nbytes for group in groups for factor in group) <= MOST:
                for group in groups:
                    product = product_of(group)
                    self._places |= {id(factor.weight): (product, place) for place, factor in enumerate(group)}
                run()
        except Exception:  # such as a view of rows that it expects to be dense
            self._watched, self._places = None, {}

    def renew(self) -> None:
        """Take over what was written to weights since the last call."""
        for product in {product for product, _ in self._places.values()}:
            product.renew()

    def normalised(self, x: Tensor, weight: Tensor, eps: float) -> Tensor | None:
        """The RMSNorm of a sum that is computed now; None if `x` is none."""
        later = self._later
        if later is None or not later.sum or later.out is not x:
            return None
        from mmspec.core.kernels import layers

        self._later = None
        return layers.normalised(later.a, weight, eps, later.b, later.out)

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._settle()
        self._forget()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.linear and len(args) == 3 and not kwargs:
            part = self._part(*args)
            if part is not None:
                return part
        later, gated = self._later, self._gated
        if func is Tensor.mul and later and gated and {*map(id, args)} == {id(later.out), id(gated[2])}:
            from mmspec.core.kernels import layers

            self._later = None
            return layers.gated(gated[0], later.out)
        if getattr(func, "__name__", "") != "__get__":  # reading an attribute, such as a shape, asks for no numbers
            self._settle()
        if func is F.silu and gated and args[0] is gated[1] and not kwargs.get("inplace"):
            return self._delayed(False, *gated[1:])
        if func is Tensor.add and len(args) == 2 and not kwargs and self._is_sum(*args):
            return self._delayed(True, *args)
        return func(*args, **kwargs)

    def _part(self, x: Any, weight: Any, bias: Any) -> Tensor | None:
        """The product of an input with a weight, if it is part of a larger one."""
        if not self._is_state(x) or x.is_inference():  # to which torch counts no writes
            return None
        if self._watched is not None and all(type(own) is nn.Parameter for own in (weight, bias) if own is not None):
            self._watched.append(Factor(x, x._version, weight, bias))
        product, place = self._places.get(id(weight), (None, 0))
        if product is None:
            return None
        now = product, x, x._version
        if self._latest is None or any(new is not old for new, old in zip(now, self._latest, strict=True)):
            self._settle()
            self._latest, whole = now, product(x)
            parts = whole.split(product.sizes, -1)
            self._parts = [*parts]
            self._gated = (whole, *parts) if len(parts) == 2 and parts[0].shape == parts[1].shape else None
        part, self._parts[place] = self._parts[place], None  # whoever has it may write to it
        return part

    def _is_state(self, x: Any) -> bool:
        return type(x) is Tensor and x.dtype == self._dtype and x.is_contiguous()

    def _is_sum(self, a: Any, b: Any) -> bool:
        return self._is_state(a) and self._is_state(b) and a.shape == b.shape and a.device == b.device

    def _delayed(self, sum: bool, a: Tensor, b: Tensor) -> Tensor:
        self._later = Later(torch.empty(a.shape, dtype=a.dtype, device=a.device), sum, a, b)
        return self._later.out

    def _settle(self) -> None:
        """Compute what was delayed."""
        later, self._later = self._later, None
        if later is not None:
            later.compute()
