"""The target's own weights over a small part of its cache: the middle model of a cascade (TriForce, arXiv 2404.11912).

A round of drafting begins with a copy of a part of the slots, with their positions. Attention then covers `budget`
slots instead of the whole text. What the outer call commits is appended in every round; where it does not fit any more,
slots are chosen and copied anew, and of a text that is longer than the budget a sixteenth of that stays free for the
rounds that follow. States of recurrent layers are copied completely. There are two ways to choose:

* The first slots (attention sinks, StreamingLLM, arXiv 2309.17453) and the latest ones, the same in every layer.
* Retrieval (TriForce, section 4.1): in every layer, for every head, the chunks of the text that the last unit's query
  scores highest, and all units behind the chunks. They are ranked when drafting begins, which takes one pass over the
  whole cache, and, if wanted, every so many rounds. Layers with a window keep the latest
  slots, which are all that they see. Where nothing can be retrieved the sinks and the latest slots are kept: behind
  pictures, behind a prompt with holes in its mask, and in models that attend over something else than the keys of their
  cache (MLA), which are warned of.

The published code ranks so (`RetrievalCache.init_graph_cache`): the keys of the prefill are split into chunks. A
chunk's key is the mean of its keys; its score is the query of the last prompt token times that key, without a softmax.
Chunk 0 always stays, and with it the `budget / chunk - 1` chunks of the highest scores. What is generated later takes
the places at the end of the budget, so that the lowest-ranked chunks go first. (There a call may not become longer than
the budget; here chunk 0 and the latest units stay.) There heads and key heads are as many; here the mean of the query
heads that share a key head is the query, which ranks as the mean of their scores does.
The query: the last unit of every row runs through the model once more, over the whole cache, and an attention function
that stands in for ours notes the queries. The unit's keys are written anew by this pass; afterwards those from before
are put back, so that not one bit of the call changes.

Knobs: `budget` (more slots: closer to the target, slower), `sinks` (first slots that always stay), `chunk` (larger:
fewer scores, coarser choice), `renew` (more often: follows the text, and costs a pass).
With a budget that covers the text, this is the target itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from einops import einsum, reduce
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import DynamicSlidingWindowLayer

from mmspec.core.distributions import take_nodes
from mmspec.core.state import State
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.hosts.attention import packed_attention
from mmspec.hosts.masks import tree_mask
from mmspec.hosts.passes import Passes
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.target import TransformersTarget
from mmspec.hosts.target_cache import TransformersTargetCache
from mmspec.hosts.traceable import Traceable
from mmspec.hosts.tree_op import Branches
from mmspec.registry.warn import warn


@dataclass(frozen=True)
class Ranking:
    """The chunks of one layer, the most important first."""

    chunk: int  # slots of a chunk
    # `[batch, key heads, rank]` int64: numbers of chunks, chunk 0 first. Rows with fewer chunks have any numbers behind
    # theirs.
    order: Tensor
    covered: Tensor  # `[batch]` int64: slots of every row that are in chunks; those behind are always kept

    def kept(self, length: Tensor, budget: int) -> Tensor:
        """The slots that a cache of `budget` slots holds of rows with `length [batch]` committed units: `[batch, key
        heads, budget]` int64, ascending.

        Rows that are shorter than the budget are kept whole, and have slots of no meaning behind their end.
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
    """The `most` best chunks of a layer with `keys [batch, key heads, slots, width]`, by `query [batch, heads, width]`,
    the heads of a group neighbours; of `length [batch]` int64 slots a row, at most `longest`, those behind the last
    whole chunk are in none.
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


APPENDED = 16
"""One slot in so many of a budget stays free for units that rounds append."""
HEARD = "mmspec_heard"  # the name of the attention function with transformers

_queries: Traceable[dict[int, Tensor]] = Traceable("mmspec_queries")
"""The queries of the pass that runs here, by the address of the keys that they meet."""


def heard_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """`packed_attention`, which notes the queries; of layers that share keys, those of the layer that has them."""
    queries = _queries.get()
    assert queries is not None, "the attention 'mmspec_heard' is used outside of `last_queries`"
    queries.setdefault(key.untyped_storage().data_ptr(), query)
    return packed_attention(module, query, key, value, attention_mask, **kwargs)


AttentionInterface.register(HEARD, heard_attention)
AttentionMaskInterface.register(HEARD, tree_mask)


@torch.inference_mode()
def last_queries(passes: Passes, slots: SlotCache, units: Tensor) -> list[Tensor | None]:
    """The queries of every row's last committed unit, `[batch, heads, width]` for each of `slots.owning`, after
    positions were applied; None where no attention read the keys of that layer as they lie in the cache.

    A recurrent layer's state has taken the unit in already; the queries behind such layers come from a text that ends
    with the unit twice. `units` are these units, `[batch, 1]`. The cache has no rings and at least one unit in every
    row; the manner of the passes is `interface`.
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


@dataclass(frozen=True)
class Retrieval:
    """The choice of chunks."""

    chunk: int = 8  # slots of a chunk
    renew: int = 0  # rounds of drafting after which the chunks are ranked anew; 0: never


@dataclass
class BudgetedCache(TransformersTargetCache):
    """The memory that the small target keeps of one round of drafting."""

    # The chunks of every layer that holds keys; None for layers with a window. Empty: nothing is retrieved.
    rankings: list[Ranking | None] = field(default_factory=list)
    age: int = 0  # rounds that these rankings have served before
    since: "Since | None" = None


@dataclass(frozen=True)
class Since:
    """The state of both caches when a round of drafting begins."""

    committed: Tensor  # `[batch]`: units that the outer call has committed
    held: Tensor  # `[batch]`: slots of them that the small cache has
    emitted: Sequence[int]  # units that every row of the outer call has emitted, on the host
    longest: int  # no row has more slots in the small cache, on the host
    budget: int  # slots that it may have before others are chosen


class BudgetedTarget:
    """A target that starts from a live call of the outer target; `sinks` of the `budget` slots are the text's first
    ones, where nothing is retrieved.
    """

    def __init__(
        self, target: TransformersTarget, budget: int = 512, sinks: int = 8, retrieval: Retrieval | None = None
    ) -> None:
        if not 0 <= sinks < budget:
            raise ValueError(f"sinks must be at least 0 and fewer than the budget of {budget} slots, got {sinks}")
        if retrieval is not None and budget < 2 * retrieval.chunk:
            raise ValueError(
                f"a budget of {budget} slots has no room for the first chunk of {retrieval.chunk} and another one; "
                f"use budget={2 * retrieval.chunk} or more"
            )
        if retrieval is not None and target.passes.manner != "interface":
            raise ValueError(
                f"{type(target.model).__name__} computes its attention itself, so that its queries cannot be heard; "
                "use cache='streaming', which keeps the first and the latest slots"
            )
        self.target, self.budget, self.sinks, self.retrieval = target, budget, sinks, retrieval
        target.keep_all = True  # the sinks, too
        self.offers = target.offers | {"live"}
        self.vocab = target.vocab
        self.context = target.context

    @torch.no_grad()
    def start(self, inputs: State, limit: int, width: int) -> Prefill:
        """Continue after the root of the outer call `inputs`."""
        outer: TransformersTargetCache = inputs.cache
        rankings, age = self._rankings(inputs, outer)
        earlier: BudgetedCache | None = None if inputs.memory is None else inputs.memory.cache
        more, emitted = limit + width + 1, list(inputs.host.emitted)
        appended = None if earlier is None else _appended(earlier, outer.slots, emitted, more, rankings)
        slots, budget = self._cut_down(outer.slots, more, rankings) if appended is None else appended
        since = Since(outer.slots.length.clone(), slots.length.clone(), emitted, slots.longest, budget)
        given: dict[str, Any] = {"prompts": outer.prompts, "behind": outer.behind, "rankings": rankings, "age": age}
        cache = BudgetedCache(slots, outer.passes, outer.mask, since=since, **given)
        root = Draft.alone(inputs.root)
        output = self.target.verify(cache, root)
        self.target.commit(cache, root.index.parent[:, 1:].expand(inputs.rows, -1), torch.ones_like(inputs.emitted))
        return Prefill(cache, output, *inputs.as_prompt())

    def verify(self, cache: TransformersTargetCache, draft: Draft, first: int = 0) -> TargetOutput:
        return self.target.verify(cache, draft, first)

    def commit(self, cache: TransformersTargetCache, path: Tensor, count: Tensor) -> None:
        self.target.commit(cache, path, count)

    def truncate(self, cache: TransformersTargetCache, length: Tensor) -> None:
        self.target.truncate(cache, length)

    def _rankings(self, inputs: State, outer: TransformersTargetCache) -> tuple[list[Ranking | None], int]:
        """The chunks of every layer that holds keys, and how many rounds their ranking has served."""
        how, whole = self.retrieval, outer.slots
        if how is None or whole.holes is not None or whole.places is not None:
            return [], 0
        earlier: BudgetedCache | None = None if inputs.memory is None else inputs.memory.cache
        if earlier is not None and (not how.renew or earlier.age + 1 < how.renew):
            return earlier.rankings, earlier.age + 1
        inputs.report.inner_passes += 1
        last = take_nodes(inputs.history, inputs.known[:, None] - 2)
        queries = last_queries(outer.passes, whole, outer.guidance.physical(last))
        owning, most = whole.owning, -(-self.budget // how.chunk)
        windowed = [isinstance(layer, DynamicSlidingWindowLayer) for layer in self.target.model_info.layers()]
        sees_all = [not short for layer, short in zip(whole.layers, windowed, strict=True) if layer in owning]
        if any(far and query is None for far, query in zip(sees_all, queries, strict=True)):
            warn(f"{type(self.target.model).__name__} retrieves nothing: its queries do not meet the keys of its cache")
            return [], 0
        return [
            ranked(layer.keys, query, whole.length, whole.longest, how.chunk, most)
            if far and query is not None
            else None
            for layer, query, far in zip(owning, queries, sees_all, strict=True)
        ], 0

    def _cut_down(self, whole: SlotCache, more: int, rankings: Sequence[Ranking | None] = ()) -> tuple[SlotCache, int]:
        """A cache of the chosen slots, with `more` free ones behind its budget; and that."""
        budget = min(self.budget, whole.capacity)  # a short text is kept whole, and takes no more than it has
        most = budget if whole.longest <= budget else budget - self.budget // APPENDED
        kept = whole.length.clamp(max=most)
        order = torch.arange(most, device=kept.device)
        sinks = 0 if rankings else self.sinks
        latest = (order >= sinks) * (whole.length - kept)[:, None]
        source = (order + latest).clamp(max=whole.capacity - 1)
        slots = SlotCache(self.target.model_info.layers(), len(kept), budget + more, kept.device)
        slots.reserve(budget + more)
        owning = whole.owning
        chosen = dict(zip(map(id, owning), rankings or [None] * len(owning), strict=True))
        for small, large in zip(slots.layers, whole.layers, strict=True):
            if large in owning:
                ranking = chosen[id(large)]
                where = source if ranking is None else ranking.kept(whole.length, most)
                keys, values = large.read(where.clamp(max=whole.capacity - 1))
                small.lazy_initialization(keys, values)
                small.write(order.expand(len(kept), -1), keys, values)
        for number, layer in whole.recurrent.items():
            slots.recurrent[number].copy(layer)
        slots.length, slots.longest = kept, min(whole.longest, most)
        if whole.holes is not None:
            holes = whole.holes.gather(1, source)
            slots.holes = torch.nn.functional.pad(holes, (0, slots.capacity - most))
        slots.shift = whole.shift + whole.length - kept
        return slots, budget


def _appended(
    earlier: BudgetedCache, whole: SlotCache, emitted: Sequence[int], more: int, rankings: Sequence[Ranking | None]
) -> tuple[SlotCache, int] | None:
    """The small cache of the round before, in which what the outer call committed since has taken the place of what was
    drafted, and its budget; None: other slots have to be chosen.
    """
    slots, since = earlier.slots, earlier.since
    assert since is not None, "a round has begun"
    new = max(now - before for now, before in zip(emitted, since.emitted, strict=True))
    others = earlier.rankings is not rankings and (earlier.rankings or rankings)
    if others or whole.holes is not None or since.longest + new > since.budget or since.budget + more > slots.most:
        return None
    order = torch.arange(new, device=since.held.device)
    source = (since.committed[:, None] + order).clamp(max=whole.capacity - 1)
    for small, large in zip(slots.layers, whole.layers, strict=True):
        if large in whole.owning:
            small.write(since.held[:, None] + order, *large.read(source))
    for number, layer in whole.recurrent.items():
        slots.recurrent[number].copy(layer)
    slots.set_length(since.held + whole.length - since.committed)
    slots.longest = since.longest + new
    return slots, since.budget
