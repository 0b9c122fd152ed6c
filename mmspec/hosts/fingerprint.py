"""Fingerprints of live models, and results of checks that are valid as long as the fingerprint stays the same."""

import hashlib
import sys
from collections.abc import Hashable, Iterator, Mapping
from itertools import count
from types import FunctionType, MethodType
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from transformers import AttentionInterface

from mmspec.hosts.attention import model_lock
from mmspec.hosts.devices import autocast_dtype, device_of, hooks_of
from mmspec.hosts.dispatch import original

Result = TypeVar("Result")

_BACKENDS: Mapping[str, Any] = {
    "cuda": torch.backends.cuda.matmul,
    "cpu": torch.backends.mkldnn.matmul,  # type: ignore[attr-defined]
}
"""torch's settings for float32 matrix products, by kind of device."""

_REDUCED = {"tf32": 2.0**-10, "bf16": 2.0**-7}  # relative errors of float32 products with reduced internal precision


KEPT = 64  # results that are kept for a model: a user who sets new hooks for every call makes one in each


class ResultsByModel(Generic[Result]):
    """Results about live models, by a key of the caller's choice; none may refer to its model, which it would keep
    alive.
    """

    def __init__(self) -> None:
        self._models: WeakKeyDictionary[nn.Module, tuple[Hashable, dict[Hashable, Result]]] = WeakKeyDictionary()

    def of(self, model: nn.Module) -> dict[Hashable, Result]:
        """The results for a model with its present weights; those for earlier weights are deleted."""
        weights = _weights(model)
        known = self._models.get(model)
        if known is None or known[0] != weights:
            known = self._models[model] = (weights, {})
        results = known[1]
        while len(results) >= KEPT:
            del results[next(iter(results))]
        return results


def arithmetic(model: Any) -> Hashable:
    """Everything beside the weights that decides what a live model computes at present."""
    attention = model.config.get_text_config(decoder=True)._attn_implementation
    modules = list(model.modules())
    return (
        code(model, modules),
        _serial(AttentionInterface().get(attention)),
        model.config.to_json_string(use_diff=False),
        attention,
        model.dtype,
        str(device_of(model)),
        model.training,
        model.__dict__.get("hf_quantizer") is not None,
        any(module.__dict__.get("_compiled_call_impl") is not None for module in modules),
        torch.get_default_dtype(),
        autocast_dtype(model),
        *(backend.fp32_precision for backend in _BACKENDS.values()),
        torch.backends.cudnn.fp32_precision,
    )


def code(model: nn.Module, modules: list[nn.Module] | None = None) -> Hashable:
    """The code that runs in a pass of a live model: hooks, replaced methods, and the functions beside its classes,
    without those that mmspec itself has there during a pass (the lock of the model is held). `modules` are the model's.
    """
    with model_lock(model):
        modules = list(model.modules()) if modules is None else modules
        kinds = {type(module) for module in modules}
        beside = sorted({kind.__module__ for kind in kinds if not kind.__module__.startswith("torch.")})
        return (
            tuple(_own_code(modules)),
            tuple(sorted((kind.__qualname__, _serial(kind.forward), _serial(kind.__call__)) for kind in kinds)),
            tuple(_serial(own) for name in beside for own in _functions(name)),
            *(tuple(hooks) for hooks in (torch_modules._global_forward_hooks, torch_modules._global_forward_pre_hooks)),
        )


_LIBRARIES = ("torch", "transformers", "peft", "accelerate")


def foreign(model: nn.Module) -> str:
    """The name of code of a model, hooks aside, that is no library's, so that no setting says what it does; "" if there
    is none.
    """
    for part in model.modules():
        for code in filter(None, (type(part).forward, vars(part).get("forward"))):
            if str(getattr(code, "__module__", None) or type(code).__module__).partition(".")[0] not in _LIBRARIES:
                return getattr(code, "__qualname__", type(code).__qualname__)
    return ""


def settings(model: nn.Module) -> Hashable:
    """The plain attributes of a model's modules, such as the adapters that are active."""
    return tuple(
        (name, value if isinstance(value, _PLAIN) else repr(value))
        for module in model.modules()
        for name, value in vars(module).items()
        if name not in _TORCHS | _NOTES and _is_plain(value)
    )


_PLAIN = (bool, int, float, str, type(None))
_TORCHS = frozenset(vars(nn.Module())) - {"training"}
_NOTES = frozenset({"_previous_max_cache_length"})  # of transformers' `generate` on a model; no pass reads them


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    return isinstance(value, _PLAIN) or (isinstance(value, list | tuple) and all(map(_is_plain, value)))


def _own_code(modules: list[nn.Module]) -> Iterator[Hashable]:
    """The code that modules run beside the code of their classes, and where."""
    for place, module in enumerate(modules):
        hooks, before, forward = module._forward_hooks, module._forward_pre_hooks, vars(module).get("forward")
        if hooks or before or forward is not None:
            yield place, *map(_serial, (*hooks.values(), *before.values(), forward))


def _functions(name: str) -> list[Any]:
    """The functions of a Python module, outside of passes; a patch puts others into their place."""
    names = vars(sys.modules[name]) if name in sys.modules else {}
    found = (original(names, own) for own in list(names))
    return [own for own in found if isinstance(own, FunctionType)]


_serials: dict[int, tuple[Any, int]] = {}  # a weak reference and a number by the address of an object
_numbers = count()


def _serial(owner: Any) -> Hashable:
    """A key of a live object, which it is not kept alive by; an address may be another object's later on."""
    if owner is None:
        return None
    if isinstance(owner, MethodType):
        return _serial(owner.__self__), _serial(owner.__func__)
    known = _serials.get(address := id(owner))
    if known is None or known[0]() is not owner:
        try:
            gone = ref(owner, lambda _: _serials.pop(address, None))
        except TypeError:  # nothing tells when it is gone, so it is a new one every time
            return next(_numbers)
        known = _serials[address] = (gone, next(_numbers))
    return known[1]


def rounding(model: Any) -> float:
    """The relative error of one operation of a live model at present: at least float32's, in which models of any dtype
    compute norms and softmaxes.
    """
    backend = _BACKENDS.get(device_of(model).type)
    reduced = _REDUCED.get(backend.fp32_precision, 0.0) if backend is not None else 0.0
    dtypes = (model.dtype, torch.float32, autocast_dtype(model))
    return max(reduced, *(torch.finfo(dtype).eps for dtype in dtypes if dtype))


def _weights(model: nn.Module) -> int:
    """A fingerprint of the weights: the writes that torch has counted, and addresses, unless hooks move the weights."""
    moving = bool(hooks_of(model))
    weights = (weight for module in model.modules() for weight in module._parameters.values() if weight is not None)
    return hash(tuple((0 if w.is_inference() else w._version, 0 if moving else _address(w)) for w in weights))


def _address(weight: Tensor) -> int:
    """The address of a weight's numbers; for tensor subclasses, such as quantised weights, the object's address."""
    return weight.data_ptr() if type(weight) is nn.Parameter else id(weight)


FIRST = 64  # numbers of every weight that count; no weight of a model that was trained further keeps them all


def identity(model: nn.Module) -> str:
    """A hash of the names, shapes and first numbers of all weights, in bfloat16, so that a model has one identity in
    half precision, too: 16 hexadecimal digits of SHA-256; refuses weights that are not in memory.
    """
    hashed = hashlib.sha256()
    for name, weight in model.named_parameters():
        if weight.is_meta:
            raise ValueError(
                f"the weight {name} of {type(model).__name__} is offloaded, so that the model cannot be told from "
                "others; load it without offloading"
            )
        hashed.update(f"{name} {list(weight.shape)}".encode())
        numbers = weight.detach().flatten()[:FIRST].to("cpu", torch.bfloat16)
        hashed.update(numbers.contiguous().view(torch.uint8).numpy().data)
    return hashed.hexdigest()[:16]
