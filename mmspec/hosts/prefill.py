"""From a prompt to a filled cache, in one of two ways.

Plain ids go through our own passes, in chunks, no chunk computing more logits than are needed. Whatever else a prompt
may hold (images, embeddings, holes in its mask, an earlier turn's cache) goes through the model's own prefill, exactly
as transformers runs it (`mmspec.hosts.stock_generate`), and the keys that it leaves are taken over.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from mmspec.core.tree import TreeIndex
from mmspec.hosts.passes import Passes
from mmspec.hosts.prompt import padding
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.tree_op import KeptNodes

CHUNK = 512
"""Units per pass of a prefill."""

RECURRENT_CHUNK = 64
"""The same of models with recurrent layers, whose operations compare every two units of a pass."""

PLAIN = frozenset({"input_ids", "attention_mask", "position_ids", "use_cache", "logits_to_keep", "generation_config"})
"""What a call of ids alone may hold."""


def is_plain(inputs: Mapping[str, Any], mask: Tensor) -> bool:
    """Whether ids and their padding are all there is: nothing else given, no holes, no positions of the user's own."""
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
    """Whether a cache of transformers holds anything."""
    states = (getattr(layer, "has_previous_state", None) for layer in cache.layers)
    if any(isinstance(each, dict) and any(each.values()) for each in states):
        return True
    keys = [layer for layer in cache.layers if isinstance(layer, CacheLayerMixin)]
    return bool(keys) and cache.get_seq_length() > 0


def prefill_chunks(passes: Passes, cache: SlotCache, ids: Tensor, mask: Tensor) -> Tensor:
    """Fill `cache` from ids `[batch, prompt]`, padded on the left; logits after every row's last: `[batch, vocab]`.

    What a cache holds already stays in front. Recurrent states take in what a row has, and no padding.
    """
    held, lengths = cache.length, mask.sum(1)
    order = torch.arange(int(lengths.max()), device=ids.device)
    # Rows move to the left edge; what is then behind a row's end is overwritten before anyone looks at it.
    aligned = ids.gather(1, ((mask.shape[1] - lengths)[:, None] + order).clamp(max=ids.shape[1] - 1))
    last = lengths - 1
    result: Tensor | None = None
    size = RECURRENT_CHUNK if cache.recurrent else CHUNK
    for first in range(0, aligned.shape[1], size):
        chunk = aligned[:, first : first + size]
        inside = (last >= first) & (last < first + chunk.shape[1])
        wanted, place = torch.unique(torch.where(inside, last - first, 0), return_inverse=True)
        valid = first + torch.arange(chunk.shape[1], device=ids.device) <= last[:, None]
        logits = passes(cache, chunk, TreeIndex.chain(chunk.shape[1], ids.device), valid=valid, keep=wanted)
        own = logits.gather(1, place[:, None, None].expand(-1, 1, logits.shape[-1]))[:, 0]
        result = own if result is None else torch.where(inside[:, None], own, result)
        nodes = torch.arange(chunk.shape[1], device=ids.device).expand(len(ids), -1)
        cache.roll(KeptNodes(nodes, (lengths - first).clamp(0, chunk.shape[1])))
        cache.length = cache.length + chunk.shape[1]
    assert result is not None
    cache.length = held + lengths
    return result


def continue_from(passes: Passes, cache: SlotCache, ids: Tensor, given: Cache, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Go on from an earlier turn's cache in our own passes: for recurrent layers.

    Not every model of transformers goes on from a state with more than one token (the Mamba-1 family begins at zero).

    Args:
        passes: Of the model.
        cache: Ours, empty.
        ids: `[batch, prompt]`: the whole conversation, or what is new in it.
        given: The turn's cache.
        mask: `[batch, column]` of the whole conversation; of a model without keys, of `ids`.

    Returns:
        Logits after the prompt `[batch, vocab]`, and the mask of all columns.

    Raises:
        ValueError: There is padding behind what the cache holds.
    """
    past = int(given.get_seq_length()) if any(isinstance(layer, CacheLayerMixin) for layer in given.layers) else 0
    if mask.shape[1] == ids.shape[1] and ids.shape[1] <= past:  # only what is new was said, and no mask
        mask = torch.cat([mask.new_ones(len(mask), past), mask], 1)
    new = mask[:, past:]
    if not bool(new.all()) or not new.shape[1]:
        raise ValueError("behind an earlier turn's cache there must be new units, and no padding among them")
    adopt(cache, given, mask[:, :past], _counted(mask)[:, past])
    return prefill_chunks(passes, cache, ids[:, ids.shape[1] - new.shape[1] :], new), mask


def adopt(cache: SlotCache, filled: Cache, mask: Tensor, following: Tensor) -> None:
    """Take over a cache that transformers filled: rows move to the left edge, holes further in stay where they are.

    Layers with a window hold their last columns only; earlier slots stay empty, and no mask ever reaches them.

    Raises:
        ValueError: A layer's keys are not those of the text.
    """
    columns, pads = mask.shape[1], padding(mask)
    slots = torch.arange(columns, device=mask.device) - pads[:, None]
    slots = torch.where(slots < 0, cache.capacity - 1, slots)  # the last slot is never read
    # A cache that was made without a config has no layers for those that only read others' keys.
    for ours, theirs in zip(cache.layers, filled.layers, strict=False):
        if getattr(theirs, "keys", None) is None or not theirs.keys.numel():
            continue
        held = theirs.keys.shape[2]
        if held > columns:
            raise ValueError(
                f"drafts cannot be verified behind this prompt: a layer keeps {held} keys for {columns} tokens, as "
                "layers do that look at pictures; disable() first"
            )
        ours.lazy_initialization(theirs.keys, theirs.values)
        ours.write(slots[:, columns - held :], theirs.keys, theirs.values)
    cache.length = columns - pads
    cache.shift = following - cache.length
    holes = torch.zeros(len(mask), cache.capacity, dtype=torch.bool, device=mask.device)
    holes = holes.scatter_(1, slots, mask == 0)
    for number, layer in cache.recurrent.items():
        layer.put("conv", filled.layers[number].conv_states)
        layer.put("recurrent", filled.layers[number].recurrent_states)
    cache.holes = holes if bool(holes[:, : cache.capacity - 1].any()) else None


def _counted(mask: Tensor) -> Tensor:
    """Positions as transformers counts them: `[batch, column]`."""
    return (mask.cumsum(1) - 1).masked_fill(mask == 0, 0)
