"""Chunks of a key cache, ranked by a query: what TriForce's retrieval cache keeps (arXiv 2404.11912, section 4.1).

The published code reads so (`RetrievalCache.init_graph_cache`): the keys of the prefill are split into chunks. A
chunk's key is the mean of its keys; its score is the query of the last prompt token times that key, without a softmax.
Chunk 0 always stays, and with it the `budget / chunk - 1` chunks of the highest scores, for every layer and every head.
What is generated later takes the places at the end of the budget, so that the lowest-ranked chunks go first. (There a
call may not become longer than the budget; here chunk 0 and the latest units stay.)

There heads and key heads are as many. Here several query heads may share a key head: their mean is the query, which
ranks as the mean of their scores does.
"""

from dataclasses import dataclass

import torch
from einops import einsum, reduce
from torch import Tensor


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
