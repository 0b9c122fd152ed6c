"""From a prompt to a filled cache, in one of two ways.

Plain ids go through our own passes in chunks, which compute only the logits that are needed. A prompt with anything
else (images, embeddings, holes in its mask, an earlier turn's cache) goes through the model's own prefill, as
transformers runs it (`mmspec.hosts.stock_generate`), and its keys and states are copied into our cache.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from mmspec.core.tree import TreeIndex
from mmspec.hosts.passes import Passes
from mmspec.hosts.prompt import cached_columns, padding
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.slot_layer import in_powers
from mmspec.hosts.tree_op import KeptNodes

CHUNK = 512  # units of a prefill pass

RECURRENT_CHUNK = 64  # units of a prefill pass with recurrent layers, whose cost is quadratic in the units of a pass

PLAIN = frozenset({"input_ids", "attention_mask", "position_ids", "use_cache", "logits_to_keep", "generation_config"})
"""The arguments of a call with ids alone."""


def is_plain(inputs: Mapping[str, Any], mask: Tensor) -> bool:
    """True if a prompt is ids and padding alone: no other inputs, no holes in its mask, no positions of the user."""
    cache = inputs.get("past_key_values")
    if cache is not None and holds_units(cache):
        return False
    if any(value is not None for name, value in inputs.items() if name not in PLAIN | {"past_key_values"}):
        return False
    if bool((mask.diff(dim=1) < 0).any()):
        return False
    positions = inputs.get("position_ids")
    if positions is None:
        return True
    return positions.shape == mask.shape and bool((positions == _counted(mask))[mask.bool()].all())


def holds_units(cache: Cache) -> bool:
    """True if a cache of transformers holds keys or states."""
    states = (getattr(layer, "has_previous_state", None) for layer in cache.layers)
    if any(isinstance(each, dict) and any(each.values()) for each in states):
        return True
    return cached_columns(cache) > 0


def prefill_chunks(passes: Passes, cache: SlotCache, ids: Tensor, mask: Tensor) -> Tensor:
    """Append a prompt to `cache`; the logits after every row's last unit, `[batch, vocab]`. Padding is not written, and
    recurrent states do not see it. `ids [batch, prompt]` are padded on the left; `mask` is 1 for units, 0 for padding.
    """
    present, lengths = cache.length, mask.sum(1)
    units, longest = int(lengths.max()), cache.longest
    size = RECURRENT_CHUNK if cache.recurrent else CHUNK
    # Off the CPU the last pass is padded, so that there are few sizes (`SlotCache.open`).
    missing = 0 if cache.free_to_read or not units % size else in_powers(units % size) - units % size
    order = torch.arange(units + missing, device=ids.device)
    # Rows move to the left edge; slots behind a row's end are overwritten before they become visible.
    aligned = ids.gather(1, ((mask.shape[1] - lengths)[:, None] + order).clamp(max=ids.shape[1] - 1))
    last = lengths - 1
    result: Tensor | None = None
    cache.reading = True
    for first in range(0, aligned.shape[1], size):
        chunk = aligned[:, first : first + size]
        inside = (last >= first) & (last < first + chunk.shape[1])
        wanted, place = torch.unique(torch.where(inside, last - first, 0), return_inverse=True)
        valid = first + torch.arange(chunk.shape[1], device=ids.device) <= last[:, None]
        logits = passes(cache, chunk, TreeIndex.chain(chunk.shape[1], ids.device), valid=valid, keep=wanted)
        own = logits.gather(1, place[:, None, None].expand(-1, 1, logits.shape[-1]))[:, 0]
        result = own if result is None else torch.where(inside[:, None], own, result)
        nodes = torch.arange(chunk.shape[1], device=ids.device).expand(len(ids), -1)
        cache.commit_states(KeptNodes(nodes, (lengths - first).clamp(0, chunk.shape[1])))
        end = first + chunk.shape[1]
        # A ring would lose a shorter row's units if the passes behind its end went on writing there.
        cache.length = present + (lengths.clamp(max=end) if cache.rings else end)
        cache.longest += chunk.shape[1]
    assert result is not None
    cache.reading, cache.longest, cache.length = False, longest + units, present + lengths
    return result


def append(passes: Passes, cache: SlotCache, units: Tensor, count: Tensor) -> None:
    """Append the first `count [batch]` of the units `[batch, n]` to rows that may differ in length."""
    cache.scratch = False
    for first in range(0, units.shape[1], cache.most_nodes):
        piece = units[:, first : first + cache.most_nodes]
        order, left = torch.arange(piece.shape[1], device=units.device), (count - first).clamp(0, piece.shape[1])
        passes(cache, piece, TreeIndex.chain(piece.shape[1], units.device), valid=order < left[:, None], keep=1)
        cache.commit(order[1:].expand(len(piece), -1), left)


def continue_from(passes: Passes, cache: SlotCache, ids: Tensor, given: Cache, mask: Tensor) -> Tensor:
    """Continue from an earlier turn's cache in our own passes, for models with recurrent layers; returns logits after
    the prompt `[batch, vocab]`.

    Not every model of transformers continues from a state with more than one token (the Mamba-1 family begins at zero).
    `ids [batch, prompt]` are the whole conversation, or its new units; `mask [batch, column]` int64 covers the whole
    conversation, for a model without keys only `ids`. Refuses padding among the new units.
    """
    past = cached_columns(given)
    new = mask[:, past:]
    if not bool(new.all()):
        raise ValueError("behind an earlier turn's cache there must be no padding among the new units")
    adopt(passes, cache, given, mask[:, :past], _counted(mask)[:, past])
    return prefill_chunks(passes, cache, ids[:, ids.shape[1] - new.shape[1] :], new)


def adopt(passes: Passes, cache: SlotCache, filled: Cache, mask: Tensor, following: Tensor) -> None:
    """Copy a cache that transformers filled. Padding on the left is dropped; holes further in keep their slots.

    Layers with a window hold only their last columns; their earlier slots stay empty, and no mask makes them visible.
    `mask` is `[batch, column]` int64; `following`, `[batch]` or `[axes, batch]`, is the position of the next unit.
    Refuses a layer that holds keys of something else than the text.
    """
    columns, pads = mask.shape[1], padding(mask)
    cache.reserve(columns + 1)
    slots = torch.arange(columns, device=mask.device) - pads[:, None]
    # A cache that was made without a config has no layers for those that only read others' keys.
    for layer, source in zip(cache.layers, filled.layers, strict=False):
        if getattr(source, "keys", None) is None or not source.keys.numel():
            continue
        stored = source.keys.shape[2]
        if stored > columns:
            raise ValueError(
                f"drafts cannot be verified behind this prompt: a layer keeps {stored} keys for {columns} tokens, as "
                "layers do that look at pictures; disable() first"
            )
        layer.fill(slots[:, columns - stored :], source.keys, source.values)
    cache.length, cache.longest = columns - pads, columns
    cache.shift = following - cache.length
    if cache.rings:
        cache.end = cache.length
    last = cache.capacity - 1
    holes = torch.zeros(len(mask), cache.capacity, dtype=torch.bool, device=mask.device)
    holes = holes.scatter_(1, torch.where(slots < 0, last, slots), mask == 0)
    holes[:, last] = False  # it took the padding, and will be a unit's slot when the cache grows
    for number, recurrent in cache.recurrent.items():
        recurrent.adopt("conv", filled.layers[number].conv_states)
        recurrent.adopt("recurrent", filled.layers[number].recurrent_states, passes.operations[number])
    cache.holes = holes if bool(holes.any()) else None


def _counted(mask: Tensor) -> Tensor:
    """Positions as transformers counts them from a mask: `[batch, column]`."""
    return (mask.cumsum(1) - 1).masked_fill(mask == 0, 0)
