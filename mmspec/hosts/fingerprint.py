"""What was found out about a live model: for as long as it lives, and stays what it was when that was found.

Only numbers and words belong here, nothing that leads back to the model: the notes would keep it alive.
"""

from collections.abc import Hashable, Mapping
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from mmspec.hosts.offload import hooks_of

Note = TypeVar("Note")

_BACKENDS: Mapping[str, Any] = {
    "cuda": torch.backends.cuda.matmul,
    "cpu": torch.backends.mkldnn.matmul,  # type: ignore[attr-defined]
}
"""What multiplies float32 matrices, by kind of device."""

_REDUCED = {"tf32": 2.0**-10, "bf16": 2.0**-7}
"""Relative errors of float32 products that are allowed to be less."""


class ResultsByModel(Generic[Note]):
    """Notes about models, by what they are about."""

    def __init__(self) -> None:
        self._models: WeakKeyDictionary[nn.Module, tuple[Hashable, dict[Hashable, Note]]] = WeakKeyDictionary()

    def of(self, model: nn.Module) -> dict[Hashable, Note]:
        """Notes about a model with the weights that it has now; all others about it are forgotten."""
        weights = _weights(model)
        known = self._models.get(model)
        if known is None or known[0] != weights:
            known = self._models[model] = (weights, {})
        return known[1]


def arithmetic(model: Any) -> Hashable:
    """What decides, beside the weights, what a live model computes here and now."""
    return (
        model.config.to_json_string(use_diff=False),
        model.config.get_text_config(decoder=True)._attn_implementation,
        model.dtype,
        str(model.device),
        model.training,
        model.__dict__.get("hf_quantizer") is not None,
        any(vars(module).get("_compiled_call_impl") is not None for module in model.modules()),
        torch.get_default_dtype(),
        _autocast(model),
        *(backend.fp32_precision for backend in _BACKENDS.values()),
        torch.backends.cudnn.fp32_precision,
    )


def rounding(model: Any) -> float:
    """Relative error of one operation of a live model, here and now.

    Norms and softmaxes are computed in float32 in models of any dtype.
    """
    backend = _BACKENDS.get(torch.device(model.device).type)
    reduced = _REDUCED.get(backend.fp32_precision, 0.0) if backend is not None else 0.0
    return max(reduced, *(torch.finfo(dtype).eps for dtype in (model.dtype, torch.float32, _autocast(model)) if dtype))


def _autocast(model: Any) -> torch.dtype | None:
    kind = torch.device(model.device).type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def _weights(model: nn.Module) -> int:
    """Tells the weights from those before them: by their places, and the writes that torch has counted.

    Where hooks move weights from device to device, places say nothing.
    """
    moving = bool(hooks_of(model))
    return hash(tuple((_writes(weight), 0 if moving else _place(weight)) for weight in model.parameters()))


def _writes(weight: Tensor) -> int:
    return 0 if weight.is_inference() else weight._version


def _place(weight: Tensor) -> int:
    """Of kinds of tensors that are not torch's own, quantised ones say, the object stands for its place."""
    return weight.data_ptr() if type(weight) is nn.Parameter else id(weight)
