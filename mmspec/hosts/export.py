"""Conversion of our cache to the `DynamicCache` that transformers' `generate` would have returned.

Only plain `DynamicCache` objects of a user can be read and filled. Static, quantized, offloaded and encoder–decoder
caches, and a user's own classes, have other layouts and are refused.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from mmspec.core.refusal import OutOfScopeError
from mmspec.hosts.model_info import ModelInfo
from mmspec.hosts.prefill import append, holds_units, prefill_chunks
from mmspec.hosts.prompt import padding
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.target_cache import TransformersTargetCache


def refuse_foreign(name: str, cache: Any) -> None:
    """Refuse a user's cache, the argument `name`, that is not a plain `DynamicCache`."""
    kind = type(cache).__name__
    if type(cache) is not DynamicCache:
        raise OutOfScopeError(
            f"{name} is a {kind}, which drafts cannot be verified on: pass a DynamicCache(config=model.config), or "
            "none, and call disable() to use this one"
        )
    if cache.offloading:
        raise OutOfScopeError(f"{name} is a {kind} that offloads: pass one without offloading=True, or none")


def refuse_cache(model_info: ModelInfo, name: str, given: Cache | None, rows: int) -> None:
    """Refuse a user's cache, the argument `name` of a call with so many rows, that cannot be continued or has no place
    for the model's states.
    """
    if given is not None and holds_units(given):
        refuse_foreign(name, given)
    if given is None:
        return
    held = next((len(states) for layer in given.layers for states in _states(layer)), rows)
    if held != rows:
        raise ValueError(f"{name} holds an earlier turn of {held} prompts, and this call has {rows}")
    stateful = [isinstance(layer, LinearAttentionCacheLayerMixin) for layer in given.layers]
    needed = [isinstance(layer, LinearAttentionCacheLayerMixin) for layer in model_info.layers()]
    if all(i < len(stateful) and stateful[i] for i, need in enumerate(needed) if need):
        return
    raise ValueError(
        f"{name} is a {type(given).__name__} without a place for this model's states; make it "
        "with DynamicCache(config=model.config)"
    )


def _states(layer: Any) -> Iterator[Tensor]:
    """The keys and the recurrent states that a layer of a cache holds, each `[batch, …]`."""
    for held in (getattr(layer, name, None) for name in ("keys", "conv_states", "recurrent_states")):
        states = held.values() if isinstance(held, dict) else [held]
        yield from (state for state in states if state is not None and state.numel())


def exported(model_info: ModelInfo, cache: TransformersTargetCache, sequences: Tensor, emitted: Tensor) -> Cache | None:
    """A call's cache as transformers returns it: everything but the last column of `sequences`.

    Rows of `sequences [batch, prompt + longest]` that ended earlier are padded as transformers pads them; `emitted
    [batch]` int64 counts each row's new units. None if a recurrent state has more units than a row that was cut, and
    the prompt is not plain ids, so that it cannot be computed again.
    """
    reached = cache.mask.shape[1] - padding(cache.mask) + emitted - 1
    if cache.slots.recurrent and bool((cache.slots.length != reached).any()):
        if not cache.plain:
            return None
        cache.slots = _recomputed(model_info, cache, sequences, reached)
    cache.slots.roll_back(reached)  # rows that were cut have more committed units
    longest = int(emitted.max())
    ends = sequences.shape[1] - longest + emitted  # the column behind a row's last unit
    order = torch.arange(max(1, longest - int(emitted.min())), device=sequences.device)
    columns = (ends - 1)[:, None] + order
    # A row that ended continues with its last unit and padding, as in transformers' own loop.
    units = sequences.gather(1, columns.clamp(max=sequences.shape[1] - 1))
    wanted = longest - emitted
    if bool((wanted > 0).any()):
        append(cache.passes, cache.slots, units, wanted)
    into = cache.given if type(cache.given) is DynamicCache else DynamicCache(config=model_info.model.config)
    return _converted(cache.slots, into, cache.mask, cache.mask.shape[1] + longest - 1)


def _recomputed(model_info: ModelInfo, cache: TransformersTargetCache, sequences: Tensor, lengths: Tensor) -> SlotCache:
    """New slots of the first `lengths [batch]` units of every row, padding not counted."""
    longest = int(lengths.max())
    order = torch.arange(longest, device=sequences.device)
    last = padding(cache.mask) + lengths
    ids = sequences.gather(1, ((last - longest)[:, None] + order).clamp(min=0))
    slots = SlotCache(model_info.layers(), len(sequences), sequences.shape[1] + 1, sequences.device)
    prefill_chunks(cache.passes, slots, ids, (order >= longest - lengths[:, None]).long())
    return slots


def _converted(cache: SlotCache, into: Cache, mask: Tensor, columns: int) -> Cache:
    """Append the missing columns to `into`, so that it holds `columns` columns in transformers' layout: the prompt's,
    and all new units but the last.

    Our cache is filled up to its last column in every row; `into` is empty or has an earlier turn, and its layers with
    a window keep only the window. `mask [batch, prompt]` int64 is 1 where a column of the prompt is a unit.
    """
    present = int(into.get_seq_length()) if cache.owning else 0
    slots = (torch.arange(columns, device=mask.device) - padding(mask)[:, None])[:, present:]
    outside = slots[:, None, :, None] < 0
    for index, layer in enumerate(cache.layers):
        if layer in cache.owning:
            keys, values = layer.read(slots.clamp(min=0))
            empty = outside.to(keys.device)  # keys and values of padding are zero
            into.update(keys.masked_fill(empty, 0), values.masked_fill(empty, 0), index)
    for number, states in cache.recurrent.items():
        for order, state in states.states("conv").items():
            into.layers[number].update_conv_state(state, state_idx=order, conv_kernel_size=state.shape[-1])
        own, layer = states.states("recurrent"), into.layers[number]
        if len(own) > len(layer.recurrent_states):  # a layer with heads (Zamba) keeps them as one
            own = {0: torch.stack([*own.values()], 1)}
        for order, state in own.items():
            layer.update_recurrent_state(state.float(), state_idx=order)
    return into
