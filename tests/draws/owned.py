"""Attention classes as users write them: any decoder's own, with a temperature by what it takes for a position.

Each looks up positions in another way: the cache's length, by layer or not, the mask's width, the argument, a counter.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

Places = Callable[[nn.Module, Tensor, dict[str, Any]], Tensor | int]


def _cache(given: dict[str, Any]) -> Any:
    cache = given.get("past_key_values")
    return given.get("layer_past") if cache is None else cache


def _length_of_layer(part: nn.Module, states: Tensor, given: dict[str, Any]) -> int:
    cache = _cache(given)
    return 0 if cache is None else cache.get_seq_length(part.layer_idx)


def _length(part: nn.Module, states: Tensor, given: dict[str, Any]) -> int:
    cache = _cache(given)
    return 0 if cache is None else cache.get_seq_length()


def _from_sizes(part: nn.Module, states: Tensor, given: dict[str, Any]) -> int:
    cache = _cache(given)
    return 0 if cache is None else cache.get_mask_sizes(states.shape[1], part.layer_idx)[0] - states.shape[1]


def _from_mask(part: nn.Module, states: Tensor, given: dict[str, Any]) -> int:
    mask = given.get("attention_mask")
    return _length_of_layer(part, states, given) if mask is None else mask.shape[-1] - states.shape[1]


def _from_positions(part: nn.Module, states: Tensor, given: dict[str, Any]) -> Tensor | int:
    places = given.get("position_ids")
    if places is None:
        return _length_of_layer(part, states, given)
    return places.reshape(-1, *places.shape[-2:])[0] - torch.arange(states.shape[1])


def _counter(part: nn.Module, states: Tensor, given: dict[str, Any]) -> int:
    """Units seen since the cache was empty; what a part keeps itself."""
    seen = 0 if states.shape[1] > 1 else getattr(part, "seen", 0)
    part.seen = seen + states.shape[1]  # type: ignore[assignment]
    return seen


OWNED: dict[str, Places] = {
    "length-of-layer": _length_of_layer,
    "length": _length,
    "mask-sizes": _from_sizes,
    "mask-width": _from_mask,
    "position-ids": _from_positions,
    "counter": _counter,
}


def with_own_attention(model: PreTrainedModel, own: str, begins: int) -> None:
    """Let every attention layer of a model scale its input by the logarithm of positions beyond `begins`."""
    for part in model.modules():
        if hasattr(part, "layer_idx") and "attention" in type(part).__name__.lower():
            part.__class__ = _owned(type(part), own, begins)


def _owned(kind: Any, own: str, begins: int) -> Any:
    def forward(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        first = OWNED[own](self, hidden_states, kwargs)
        place = torch.arange(hidden_states.shape[1]) + first
        scale = 1 + ((place + 1) / begins).clamp(min=1).log()
        return kind.forward(self, hidden_states * scale.reshape(-1, hidden_states.shape[1], 1), *args, **kwargs)

    return type(f"Own{kind.__name__}", (kind,), {"forward": forward, "__module__": __name__})
