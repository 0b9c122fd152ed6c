"""The contents of TriForce's retrieval cache (arXiv 2404.11912, section 4.1): chunks of a key cache, ranked by a query.

The published code reads so (`RetrievalCache.init_graph_cache`): the keys of the prefill are split into chunks. A
chunk's key is the mean of its keys; its score is the query of the last prompt token times that key, without a softmax.
Chunk 0 always stays, and with it the `budget / chunk - 1` chunks of the highest scores, for every layer and every head.
What is generated later takes the places at the end of the budget, so that the lowest-ranked chunks go first. (There a
call may not become longer than the budget; here chunk 0 and the latest units stay.)

There heads and key heads are as many. Here several query heads may share a key head: their mean is the query, which
ranks as the mean of their scores does.

The query: the last unit of every row runs through the model once more, over the whole cache, and an attention function
that stands in for ours notes the queries. The unit's keys are written anew by this pass; afterwards those from before
are put back, so that not one bit of the call changes. Models that compute attention themselves cannot be listened to.
"""

from dataclasses import dataclass
from typing import Any

import torch
from einops import einsum, reduce
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from mmspec.core.tree import TreeIndex
from mmspec.hosts.attention import packed_attention
from mmspec.hosts.masks import tree_mask
from mmspec.hosts.passes import Passes
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.traceable import Traceable
from mmspec.hosts.tree_op import Branches


@dataclass(frozen=True)
class Ranking:
    """The chunks of one layer, the most important first."""

    chunk: int  # slots of a chunk
    # `[batch, key heads, rank]` int64: numbers of chunks, chunk 0 first. Rows with fewer chunks have any numbers behind
    # theirs.
    order: Tensor
    covered: Tensor  # `[batch]` int64: slots of every row that are in chunks; those behind are always kept

    def kept(self, length: Tensor, budget: int) -> Tensor:
        """The slots that a cache of `budget` slots holds of rows with `length [batch]` committed units.

        Returns:
            `[batch, key heads, budget]` int64, ascending; rows that are shorter than the budget are kept whole, and
            have slots of no meaning behind their end.
        """
        length, covered = length.to(self.order.device)[:, None, None], self.covered[:, None, None]
        place = torch.arange(budget, device=length.device)
        kept = length.clamp(max=budget)
        # New units push out chunks from the lowest rank up, except chunk 0; then older ones among themselves.
        chunked = covered.minimum((budget - (length - covered)).clamp(min=self.chunk))
        rank = (place // self.chunk).clamp(max=self.order.shape[2] - 1)
        slot = torch.where(place < chunked, self.order[:, :, rank] * self.chunk + place % self.chunk, 0)
        slot = torch.where(place < chunked, slot, length - kept + place)
        return torch.where(place < kept, slot, length + place).sort(-1).values


def ranked(keys: Tensor, query: Tensor, length: Tensor, longest: int, chunk: int, most: int) -> Ranking:
    """Rank the chunks of a layer.

    Args:
        keys: `[batch, key heads, slots, width]`, at least one chunk.
        query: `[batch, heads, width]`; the heads of one group are neighbours.
        length: `[batch]` int64: committed slots of every row; what lies behind the last whole chunk is in none.
        longest: No row has more.
        chunk: Slots of a chunk.
        most: Chunks that are wanted at most.
    """
    number = max(1, longest // chunk)
    chunks = keys[:, :, : number * chunk].float()
    means = reduce(chunks, "batch head (n chunk) width -> batch head n width", "mean", chunk=chunk)
    grouped = reduce(query.float(), "batch (head group) width -> batch head width", "mean", head=keys.shape[1])
    score = einsum(grouped, means, "batch head width, batch head n width -> batch head n")
    whole, which = length.to(keys.device) // chunk, torch.arange(number, device=keys.device)
    score = score.masked_fill(which >= whole[:, None, None], -torch.inf).masked_fill(which == 0, torch.inf)
    order = score.sort(dim=-1, descending=True, stable=True).indices[..., :most]
    return Ranking(chunk, order, whole * chunk)


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

    A recurrent layer's state has taken the unit in already; the queries behind such layers come from a text that
    ends with the unit twice. `units` are these units, `[batch, 1]`. The cache has no rings and at least one unit in
    every row; the manner of the passes is `interface`.

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
        with _queries.holding(queries), passes.attending(HEARD):
            passes.forward(slots, units, geometry, arguments, Branches.of(index, slots.state_dtype))
    finally:
        slots.set_length(length)
        slots.longest = longest
        for layer, (keys, values) in zip(slots.owning, before, strict=True):
            layer.write(length[:, None] - 1, keys, values)
    found = [queries.get(layer.keys.untyped_storage().data_ptr()) for layer in slots.owning]
    return [None if query is None else query[:, :, -1] for query in found]
