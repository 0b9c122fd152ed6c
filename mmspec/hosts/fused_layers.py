"""Parts of a model's layers that recorded rounds compute in one launch each, in half precision on a GPU.

Launched one by one, or replayed from a graph, an RMSNorm of eight operations and a rotary embedding of ten take a third
of a pass at one node. Which of a model's parts are what the kernels compute is found out by trying: a part whose
results differ is left alone. What follows from one another is joined (`mmspec.hosts.joined`). In float32 all parts are
left alone: there, rounds are equal to the eager ones.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core import kernels
from mmspec.hosts.joined import Joined

ROTARY = "apply_rotary_pos_emb"  # transformers' function of rotary embeddings, by its name in a modelling module

HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class FusedLayers:
    """The parts of a model that kernels can compute."""

    norms: Sequence[Any] = ()
    forwards: Sequence[Any] = ()  # of the norms; one object each as long as this lives, which compiled code checks
    sites: Sequence[tuple[dict[str, Any], str]] = ()  # where its layers look up their rotary embedding
    joined: Joined | None = None  # the mode of passes that torch does not compile

    @classmethod
    def of(cls, model: nn.Module, run: Callable[["FusedLayers"], object] | None = None) -> "FusedLayers":
        """Find the parts of a live model; none where no kernels run, or in float32. `run` runs it over several rows
        with the parts that it is given, from which is learnt what can be joined; None: nothing is.
        """
        first = next(model.parameters(), None)
        if first is None or first.dtype not in HALVES or not kernels.available(first.device):
            return cls()
        norms = [module for module in model.modules() if _may_be_norm(module, first.dtype)]
        right = {kind: _is_norm(next(n for n in norms if type(n) is kind)) for kind in set(map(type, norms))}
        named = {id(names): names for names in map(globals_of, set(map(type, model.modules()))) if ROTARY in names}
        sites = [(names, ROTARY) for names in named.values() if _is_rotary(names[ROTARY], first)]
        norms, joined = [norm for norm in norms if right[type(norm)]], None if run is None else Joined(first.dtype)
        found = cls(norms, [partial(_normalised, norm, joined) for norm in norms], sites, joined)
        if run is not None and joined is not None:
            joined.learn(partial(run, found))
        return found

    @contextmanager
    def used(self) -> Iterator[None]:
        """Inside the block the norms run as kernels; who may run the model holds its lock."""
        for norm, forward in zip(self.norms, self.forwards, strict=True):
            norm.forward = forward
        try:
            yield
        finally:
            for norm in self.norms:
                vars(norm).pop("forward", None)


def rotated(original: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any) -> Any:
    """The result of a function of rotary embeddings, in one launch where a kernel covers the call."""
    plain = not args and not kwargs and q.dim() == k.dim() == 4 and cos.dim() == 3 and not torch.compiler.is_compiling()
    alike = {x.dtype for x in (q, k, cos, sin)} == {q.dtype} and q.dtype in HALVES and kernels.available(q.device)
    if not (plain and alike and {x.stride(-1) for x in (q, k, cos, sin)} == {1} and cos.shape[-1] == q.shape[-1]):
        return original(q, k, cos, sin, *args, **kwargs)
    from mmspec.core.kernels import layers

    return layers.rotated(q, k, cos, sin)


def _normalised(norm: Any, joined: Joined | None, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    # Gated norms take more arguments, and without them are norms like others.
    if args or kwargs or torch.compiler.is_compiling() or x.dtype != norm.weight.dtype:
        return type(norm).forward(norm, x, *args, **kwargs)
    of_sum = None if joined is None else joined.normalised(x, norm.weight, _eps(norm))
    if of_sum is not None:
        return of_sum
    from mmspec.core.kernels import layers

    return layers.normalised(x, norm.weight, _eps(norm))


def _eps(norm: Any) -> float:
    own = vars(norm)
    return float(own.get("variance_epsilon", own.get("eps")))


def _may_be_norm(module: nn.Module, dtype: torch.dtype) -> bool:
    own, weight = vars(module), module._parameters.get("weight")
    named = "RMSNorm" in type(module).__name__ and ("variance_epsilon" in own or "eps" in own) and "forward" not in own
    return named and type(weight) is nn.Parameter and weight.dim() == 1 and weight.dtype == dtype


def _is_norm(norm: Any) -> bool:
    """True if a module computes what the kernel does, up to the rounding of one result."""
    try:
        x = torch.randn(4, len(norm.weight), device=norm.weight.device, generator=_numbers(norm.weight)).to(norm.weight)
        found, expected = _normalised(norm, None, x).float(), type(norm).forward(norm, x).float()
    except Exception:  # it may need more than one argument
        return False
    return bool(torch.isclose(found, expected, rtol=2 * torch.finfo(x.dtype).eps, atol=0.0).all())


def _is_rotary(function: Any, weight: Tensor) -> bool:
    """True if a function rotates as the kernel does, up to the rounding of its products."""
    numbers, width = _numbers(weight), 32
    q, k = (torch.rand(2, n, 5, width, device=weight.device, generator=numbers).to(weight) for n in (3, 1))
    angle = 6.0 * torch.rand(2, 5, width // 2, device=weight.device, generator=numbers).repeat(1, 1, 2)
    cos, sin = angle.cos().to(weight), angle.sin().to(weight)
    try:
        pairs = zip(rotated(function, q, k, cos, sin), function(q, k, cos, sin), strict=True)
        apart = max(float((found.float() - expected.float()).abs().max()) for found, expected in pairs)
    except Exception:  # it may take other arguments
        return False
    return apart <= 4 * torch.finfo(weight.dtype).eps  # products are below 1, and sums below 2


def _numbers(tensor: Tensor) -> torch.Generator:
    return torch.Generator(tensor.device).manual_seed(0)


def globals_of(kind: type[nn.Module]) -> dict[str, Any]:
    """The globals of the module in which a layer's forward is written; a class may inherit it from elsewhere."""
    return getattr(inspect.unwrap(kind.forward), "__globals__", {})
