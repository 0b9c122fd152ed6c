"""Offloaded models whose parts are called one by one: weights are moved as if `forward` had been called.

accelerate's offloading (`enable_model_cpu_offload`, `enable_sequential_cpu_offload`) and diffusers' group offloading
attach hooks to `forward`. Targets that call a model's embeddings, blocks and head one by one never run the hook of the
whole model, and code that reads a weight without calling its module does not run the hook of that module.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def hooks_of(module: nn.Module) -> list[Any]:
    """The offloading hooks of a module; empty if it is not offloaded."""
    own, registry = getattr(module, "_hf_hook", None), getattr(module, "_diffusers_hook", None)
    return [*([] if own is None else [own]), *([] if registry is None else registry.hooks.values())]


def device_of(model: Any) -> torch.device:
    """The device on which a model's passes run; the weights of an offloaded one are on `meta` between its passes."""
    for module in (model.get_input_embeddings(), *model.modules()) if model.device.type == "meta" else ():
        for hook in hooks_of(module):
            places = (getattr(part, "execution_device", None) for part in getattr(hook, "hooks", [hook]))
            place = next((place for place in places if place is not None), None)
            if place is not None:
                return torch.device(place)
    return torch.device(model.device)


@contextmanager
def awake(*modules: nn.Module) -> Iterator[None]:
    """Inside the block, the weights of these modules are on the device to which their hooks move them for a pass.

    Do not enter the block in inference mode: tensors that are moved there cannot be moved back.

    Args:
        *modules: A model whose parts are called, and every part whose weights are read without a call.
    """
    hooked = [(hook, module) for module in modules for hook in hooks_of(module)]
    for hook, module in hooked:
        hook.pre_forward(module)
    try:
        yield
    finally:
        for hook, module in reversed(hooked):
            hook.post_forward(module, None)
