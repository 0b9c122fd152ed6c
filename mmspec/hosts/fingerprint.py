"""Fingerprints of live models, and results of checks that are valid as long as the fingerprint stays the same."""

from collections.abc import Hashable, Mapping
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from mmspec.hosts.autocast import autocast_dtype
from mmspec.hosts.offload import hooks_of

Result = TypeVar("Result")

_BACKENDS: Mapping[str, Any] = {
    "cuda": torch.backends.cuda.matmul,
    "cpu": torch.backends.mkldnn.matmul,  # type: ignore[attr-defined]
}
"""torch's settings for float32 matrix products, by kind of device."""

_REDUCED = {"tf32": 2.0**-10, "bf16": 2.0**-7}
"""Relative errors of float32 products with reduced internal precision."""


class ResultsByModel(Generic[Result]):
    """Results about live models, by a key of the caller's choice.

    Results must not refer to their model: the reference would keep it alive.
    """

    def __init__(self) -> None:
        self._models: WeakKeyDictionary[nn.Module, tuple[Hashable, dict[Hashable, Result]]] = WeakKeyDictionary()

    def of(self, model: nn.Module) -> dict[Hashable, Result]:
        """The results for a model with its present weights; those for earlier weights are deleted."""
        weights = _weights(model)
        known = self._models.get(model)
        if known is None or known[0] != weights:
            known = self._models[model] = (weights, {})
        return known[1]


def arithmetic(model: Any) -> Hashable:
    """Everything beside the weights that decides what a live model computes at present."""
    return (
        model.config.to_json_string(use_diff=False),
        model.config.get_text_config(decoder=True)._attn_implementation,
        model.dtype,
        str(model.device),
        model.training,
        model.__dict__.get("hf_quantizer") is not None,
        any(vars(module).get("_compiled_call_impl") is not None for module in model.modules()),
        torch.get_default_dtype(),
        autocast_dtype(model),
        *(backend.fp32_precision for backend in _BACKENDS.values()),
        torch.backends.cudnn.fp32_precision,
    )


def rounding(model: Any) -> float:
    """The relative error of one operation of a live model at present.

    It is at least that of float32, in which models of any dtype compute norms and softmaxes.
    """
    backend = _BACKENDS.get(torch.device(model.device).type)
    reduced = _REDUCED.get(backend.fp32_precision, 0.0) if backend is not None else 0.0
    dtypes = (model.dtype, torch.float32, autocast_dtype(model))
    return max(reduced, *(torch.finfo(dtype).eps for dtype in dtypes if dtype))


def _weights(model: nn.Module) -> int:
    """A fingerprint of the weights: their addresses, and the writes that torch has counted.

    Addresses are left out if hooks move the weights between devices.
    """
    moving = bool(hooks_of(model))
    return hash(tuple((_writes(weight), 0 if moving else _address(weight)) for weight in model.parameters()))


def _writes(weight: Tensor) -> int:
    return 0 if weight.is_inference() else weight._version


def _address(weight: Tensor) -> int:
    """The address of a weight's numbers; for tensor subclasses, such as quantised weights, that of the object."""
    return weight.data_ptr() if type(weight) is nn.Parameter else id(weight)
