"""What was found out about a live model: for as long as it lives, and stays what it was when that was found.

Only numbers and words belong here, nothing that leads back to the model: the notes would keep it alive.
"""

from collections.abc import Hashable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from mmspec.hosts.offload import hooks_of

Note = TypeVar("Note")


class Remembered(Generic[Note]):
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
    kind, backends = torch.device(model.device).type, torch.backends
    return (
        model.config.to_json_string(use_diff=False),
        model.config.get_text_config(decoder=True)._attn_implementation,
        model.dtype,
        str(model.device),
        model.training,
        model.__dict__.get("hf_quantizer") is not None,
        any(vars(module).get("_compiled_call_impl") is not None for module in model.modules()),
        torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind),
        torch.get_default_dtype(),
        backends.cuda.matmul.fp32_precision,
        backends.cudnn.fp32_precision,  # type: ignore[attr-defined]
        backends.mkldnn.matmul.fp32_precision,  # type: ignore[attr-defined]
    )


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
