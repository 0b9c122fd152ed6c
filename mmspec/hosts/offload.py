"""Offloaded models, for callers of their parts: weights come to the device as if `forward` had been called.

accelerate's offloading (`enable_model_cpu_offload`, `enable_sequential_cpu_offload`) and diffusers' own group
offloading hang hooks on `forward`. A target calls a model's embeddings, blocks and head one by one, so that the hook of
the whole would never run; and whoever reads a weight without calling its module needs the hook of that module.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


def hooks_of(module: nn.Module) -> list[Any]:
    """What runs before and after the module's `forward`; empty where nothing is offloaded."""
    own, registry = getattr(module, "_hf_hook", None), getattr(module, "_diffusers_hook", None)
    return [*([] if own is None else [own]), *([] if registry is None else registry.hooks.values())]


@contextmanager
def awake(*modules: nn.Module) -> Iterator[None]:
    """Inside the block, the weights of these modules are where their hooks put them for a pass.

    Do not enter it in inference mode: weights that move there could never be moved back.

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
