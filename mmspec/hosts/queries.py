"""The queries with which a call's last committed units look at their text: what retrieval ranks the text by.

The last unit of every row runs through the model once more, over the whole cache, and an attention function that stands
in for ours notes the queries. The unit's keys are written anew by this pass; afterwards those from before are put back,
so that not one bit of the call changes. Models that compute attention themselves cannot be listened to.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from mmspec.core.tree import TreeIndex
from mmspec.hosts.attention import packed_attention
from mmspec.hosts.masks import tree_mask
from mmspec.hosts.passes import Passes
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.traceable import Traceable
from mmspec.hosts.tree_op import Branches

HEARD = "mmspec_heard"
"""The name of the attention function with transformers."""

_queries: Traceable[dict[int, Tensor]] = Traceable("mmspec_queries")
"""The queries of the pass that runs here, by the address of the keys that they meet."""


def heard_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """`packed_attention`, whose arguments it shares; notes the queries.

    Of layers that share keys, the first one counts: the one whose keys they are.
    """
    queries = _queries.get()
    assert queries is not None, "the attention 'mmspec_heard' is used outside of `last_queries`"
    queries.setdefault(key.untyped_storage().data_ptr(), query)
    return packed_attention(module, query, key, value, attention_mask, **kwargs)


AttentionInterface.register(HEARD, heard_attention)
AttentionMaskInterface.register(HEARD, tree_mask)


@torch.inference_mode()
def last_queries(passes: Passes, slots: SlotCache, units: Tensor) -> list[Tensor | None]:
    """The queries of every row's last committed unit.

    A recurrent layer's state has taken the unit in already; the queries behind such layers are those of a text that
    ends with the unit twice.

    Args:
        passes: Runs the model; its manner is `interface`.
        slots: The call's cache, of at least one unit in every row, without rings.
        units: `[batch, 1]`: these units.

    Returns:
        For each of `slots.owning`: `[batch, heads, width]`, after positions were applied; or None if no attention read
        the keys of that layer as they lie in the cache.
    """
    assert not slots.rings, "a ring may have dropped what the last unit saw"
    length, longest, index = slots.length, slots.longest, TreeIndex.chain(1, units.device)
    before, queries = [layer.read(length[:, None] - 1) for layer in slots.owning], dict[int, Tensor]()
    slots.set_length(length - 1)
    try:
        slots.open(0, 1)
        geometry = passes.geometry(slots, index, 0, slots.start is not None and slots.holes is None)
        arguments = passes.arguments(slots, index.depth, None, 1)
        with _queries.holding(queries), passes.ready(HEARD):
            passes.forward(slots, units, geometry, arguments, Branches.of(index, slots.state_dtype))
    finally:
        slots.set_length(length)
        slots.longest = longest
        for layer, (keys, values) in zip(slots.owning, before, strict=True):
            layer.write(length[:, None] - 1, keys, values)
    found = [queries.get(layer.keys.untyped_storage().data_ptr()) for layer in slots.owning]
    return [None if query is None else query[:, :, -1] for query in found]
