"""The way back: our cache as the DynamicCache that transformers' `generate` would have returned.

And which caches of a user's there is a way from and to: plain ones. Others (static, quantized, offloaded, of encoders
and decoders, of a user's own class) lay keys out in their own way.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache

from mmspec.core.refusal import OutOfScopeError
from mmspec.hosts.prompt import padding
from mmspec.hosts.slot_cache import SlotCache


def refuse_foreign(name: str, cache: Any) -> None:
    """Refuse a user's cache that is not a plain one.

    Args:
        name: What the model calls its cache.
        cache: The cache that came with the call.

    Raises:
        OutOfScopeError: Names the kind of cache.
    """
    kind = type(cache).__name__
    if type(cache) is not DynamicCache:
        raise OutOfScopeError(
            f"{name} is a {kind}, which drafts cannot be verified on: pass a DynamicCache(config=model.config), or "
            "none, and call disable() to use this one"
        )
    if cache.offloading:
        raise OutOfScopeError(f"{name} is a {kind} that offloads: pass one without offloading=True, or none")


def export(cache: SlotCache, into: Cache, mask: Tensor, columns: int) -> Cache:
    """Append what `into` lacks, so that it holds `columns` columns as transformers lays them out.

    Args:
        cache: Ours, every row filled up to its last column.
        into: A cache of transformers, empty or as the user gave it; windows cut themselves down in it.
        mask: `[batch, prompt]` 1 where a column of the prompt was a unit.
        columns: Columns wanted: the prompt's, and all new units but the last.
    """
    held = int(into.get_seq_length()) if cache.owning else 0
    slots = (torch.arange(columns, device=mask.device) - padding(mask)[:, None])[:, held:]
    outside = slots[:, None, :, None] < 0
    for index, layer in enumerate(cache.layers):
        if layer in cache.owning:
            keys, values = layer.read(slots.clamp(min=0))
            empty = outside.to(keys.device)  # padding holds nothing
            into.update(keys.masked_fill(empty, 0), values.masked_fill(empty, 0), index)
    for number, states in cache.recurrent.items():
        for order, state in states.states("conv").items():
            into.layers[number].update_conv_state(state, state_idx=order, conv_kernel_size=state.shape[-1])
        for order, state in states.states("recurrent").items():
            into.layers[number].update_recurrent_state(state, state_idx=order)
    return into
