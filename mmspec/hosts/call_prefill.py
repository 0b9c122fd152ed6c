"""The beginning of a call of a transformers model: its slots are made, and the prompt is read (`mmspec.hosts.prefill`).

Ids go through our own passes, and so does what follows an earlier turn of a model with recurrent layers; all else
(pictures, embeddings, holes in the mask) goes through the model's own prefill.
Rows of one prompt (`num_return_sequences=n`) are read once, and what is kept is copied to each: to the bit what a batch
of the distinct prompts keeps, and what a prefill of all rows keeps up to rounding, which may depend on how many rows a
pass has, as it does in every batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import Cache, EncoderDecoderCache

from mmspec.core.guided import NULL_INPUTS
from mmspec.core.refusal import OutOfScopeError
from mmspec.core.transfer import on_device
from mmspec.core.types import Prefill, TargetOutput
from mmspec.hosts import prefill, prompt
from mmspec.hosts.attention import model_lock
from mmspec.hosts.export import refuse_cache
from mmspec.hosts.features import Reading
from mmspec.hosts.guidance import stacked
from mmspec.hosts.later_checks import compare_long, compare_padded
from mmspec.hosts.memory import Memory, cost, refuse_length, refuse_together
from mmspec.hosts.model_info import ModelInfo, cache_name
from mmspec.hosts.passes import Passes
from mmspec.hosts.self_check import compare_calls
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.slot_layer import rings
from mmspec.hosts.stock_generate import StockGenerate
from mmspec.hosts.target_cache import TransformersTargetCache


class PrefillTarget(Protocol):
    """A target over a model of transformers; `TransformersTarget` has these attributes."""

    model_info: ModelInfo
    drafting: bool
    boundaries: tuple[int, ...]
    context: int | None
    keep_all: bool
    memory: Memory | None

    def places(self, stock: StockGenerate, inputs: Mapping[str, Any]) -> Tensor | None: ...


class _Read(NamedTuple):
    """The result of reading a prompt: its slots, logits `[row, vocab]`, the mask of all columns, states if any; and how
    many prompts were read, if several rows have one.
    """

    slots: SlotCache
    logits: Tensor
    mask: Tensor
    hidden: Tensor | None
    prompts: int | None = None


@dataclass(frozen=True)
class CallPrefill:
    """A call that begins."""

    target: PrefillTarget  # whose call it is
    passes: Passes  # runs its model
    limit: int  # new units wanted per row
    width: int  # the most nodes of a draft, root included
    fixed: bool  # whether the passes after the prefill have one shape

    @torch.no_grad()
    def __call__(self, inputs: Any) -> Prefill:
        """Read a prompt; see `TransformersTarget.start` for arguments and errors."""
        target, model_info = self.target, self.target.model_info
        given = dict(inputs) if isinstance(inputs, Mapping) else {"input_ids": inputs}
        if given.get("cache_params") is not None:  # the argument of models without keys
            given["past_key_values"] = given.pop("cache_params")
        if target.drafting:
            given = prompt.for_drafting(given, model_info.model, model_info.config.hidden_size, target.context)
        null = given.pop(NULL_INPUTS, None)
        if target.drafting and not given["input_ids"].shape[1]:
            return self._empty(given["input_ids"])
        ids, mask = prompt.read(given, model_info.config.vocab_size)
        earlier = given.get("past_key_values")
        refuse_cache(model_info, cache_name(model_info.model), earlier, len(ids))
        self._refuse_length(int(mask.sum(1).max()))
        plain = prefill.is_plain(given, mask) and (target.drafting or not model_info.reads_both_ways)
        if null is not None and not plain:
            raise ValueError("guidance in two halves goes with a prompt of ids and padding alone")
        if not target.drafting:  # a draft model need not be exact
            rows = len(mask) if null is None else 2 * len(mask)
            refuse_together(model_info, mask, self.limit, rows)
            compare_long(self.passes, mask.shape[1] + self.limit, rows)
        if plain:
            read = self._ids(ids, mask, None if null is None else prompt.read(null, model_info.vocab), earlier)
        elif model_info.ops and earlier is not None and prefill.holds_units(earlier):
            read = self._continued(ids, mask, earlier)
        else:
            read = self._stock(ids, mask, given)
        slots = read.slots
        slots.begun = slots.length.tolist()
        prompts = None if null is None else slots.length
        behind = self.limit + self.width
        cache = TransformersTargetCache(slots, self.passes, read.mask, earlier, plain, prompts, behind)
        pads = prompt.padding(read.mask[:, read.mask.shape[1] - ids.shape[1] :])
        scores, unconditional = cache.guidance.apart(read.logits[:, None])
        output = TargetOutput(logits=scores, null=unconditional)
        return Prefill(cache, output, ids, pads, read.hidden, read.prompts)

    def _ids(self, ids: Tensor, mask: Tensor, null: tuple[Tensor, Tensor] | None, earlier: Cache | None) -> _Read:
        """Our own passes over ids, of equal prompts once, and over unconditional prompts beside them."""
        if not self.target.drafting and not bool(mask.all()):
            compare_padded(self.passes, mask.shape[1] + self.limit)
        both = (ids, mask) if null is None else stacked((ids, mask), null)
        # Slots of one prompt are copied to its rows, which takes more memory than they need in the end. And where hooks
        # are made for the rows, one prompt need not mean the same in two of them.
        alike = self.target.memory is None and self.passes.rows is None
        prompts = Distinct.of(*both) if alike else Distinct.each(*both)
        slots = self._slots(prompts.mask, self._rings(earlier, mask.shape[1]))
        with Reading(self.target.model_info, self.target.boundaries) as record:
            logits = prompts.to_rows(prefill.prefill_chunks(self.passes, slots, prompts.ids, prompts.mask))
        hidden = record.aligned(prompts.mask.sum(1))
        prompts.spread(slots)
        hidden = None if hidden is None else prompts.to_rows(hidden)[: len(ids), -ids.shape[1] :]
        return _Read(slots, logits, mask, hidden, len(prompts.ids) if prompts.repeated else None)

    def _continued(self, ids: Tensor, mask: Tensor, earlier: Cache) -> _Read:
        """Our own passes behind the states of an earlier turn."""
        slots = self._slots(mask, self._rings(earlier, mask.shape[1]))
        with Reading(self.target.model_info, self.target.boundaries) as record:
            logits = prefill.continue_from(self.passes, slots, ids, earlier, mask)
        new = mask.shape[1] - prompt.cached_columns(earlier)
        return _Read(slots, logits, mask, None if record.states is None else record.states[:, :new])

    def _stock(self, ids: Tensor, mask: Tensor, given: Mapping[str, Any]) -> _Read:
        target, model_info = self.target, self.target.model_info
        if target.memory is not None:
            raise ValueError(
                "a memory budget goes with prompts of ids and padding alone: others are read by the model's own "
                "prefill, into a cache that is not counted"
            )
        kept = self._rings(given.get("past_key_values"), mask.shape[1])  # before the cache is filled
        with model_lock(model_info.model):
            with Reading(model_info, target.boundaries) as record:
                stock = StockGenerate(model_info, ids, given)
            if isinstance(stock.cache, EncoderDecoderCache):
                raise OutOfScopeError(
                    f"{type(model_info.model).__name__} reads an encoder's states in this call; only decoders can be "
                    "speculated over"
                )
            places = target.places(stock, given)
            following = stock.following() if places is None else places[..., 0]
        slots = self._slots(stock.mask, kept)
        prefill.adopt(self.passes, slots, stock.cache, stock.mask, following)
        slots.places, slots.origin = places, slots.length
        if not target.drafting:  # a draft model need not be exact
            with model_lock(model_info.model):
                compare_calls(self.passes, slots, stock, given)
        return _Read(slots, stock.logits, stock.mask, record.states)

    def _empty(self, ids: Tensor) -> Prefill:
        """A draft model in a call whose prompt has no ids; it will read the emitted units only."""
        mask = torch.ones_like(ids)
        slots = self._slots(mask, self._rings(None, 0))
        logits = torch.zeros(len(ids), 1, self.target.model_info.vocab, dtype=torch.float32, device=ids.device)
        return Prefill(TransformersTargetCache(slots, self.passes, mask), TargetOutput(logits=logits), ids, mask.sum(1))

    def _slots(self, mask: Tensor, kept: Mapping[int, int]) -> SlotCache:
        """Empty slots for prompts with this mask; `kept`: the rings."""
        longest = int((mask.shape[1] - prompt.padding(mask)).max()) if mask.shape[1] else 0
        self._refuse_length(longest)
        most, memory = longest + self.limit + self.width, self.target.memory
        if memory is not None:
            price = cost(self.passes)
            most = memory.slots(
                price, len(mask), longest=longest, new=self.limit, width=self.width, rings=kept, fixed=self.fixed
            )
        slots = SlotCache(self.target.model_info.layers(), len(mask), most, mask.device, self.fixed, kept)
        slots.reserve(0 if memory is None else slots.most)
        return slots

    def _rings(self, earlier: Cache | None, fed: int) -> dict[int, int]:
        if self.target.keep_all or not self.passes.rings:
            return {}
        # Captured rounds serve prompts of many lengths.
        chunk = prefill.CHUNK if self.fixed else min(prefill.CHUNK, fed)
        return rings(self.target.model_info.layers(), earlier, chunk, self.width)

    def _refuse_length(self, longest: int) -> None:
        if not self.target.drafting:  # beyond its context a draft model drafts nothing; the call itself is possible
            refuse_length(self.target.model_info, self.target.context, longest, self.limit)


@dataclass(frozen=True)
class Distinct:
    """The distinct prompts of a batch, in the order of the rows."""

    ids: Tensor  # `[prompt, column]` int64, padded on the left
    mask: Tensor  # `[prompt, column]` int64: 1 for units, 0 for padding
    prompt: Tensor  # `[row]` int64: which of them every row has

    @classmethod
    def of(cls, ids: Tensor, mask: Tensor) -> "Distinct":
        """Find the distinct prompts among the rows `ids` and `mask`, both `[row, column]`; the host reads them."""
        texts = torch.where(mask.bool(), ids, -1).cpu().numpy()  # padding may be any id
        found: dict[bytes, int] = {}
        alike = [found.setdefault(text.tobytes(), row) for row, text in enumerate(texts)]
        first, own = (on_device(rows, ids.device, torch.int64) for rows in ([*found.values()], alike))
        return cls(ids[first], mask[first], torch.searchsorted(first, own))

    @classmethod
    def each(cls, ids: Tensor, mask: Tensor) -> "Distinct":
        """Take every row's prompt as one of its own, whether or not some are equal."""
        return cls(ids, mask, torch.arange(len(ids), device=ids.device))

    @property
    def repeated(self) -> bool:
        """True if rows have the same prompt."""
        return len(self.ids) < len(self.prompt)

    def to_rows(self, values: Tensor) -> Tensor:
        """Values `[prompt, …]` of every row: `[row, …]`."""
        return values[self.prompt.to(values.device)] if self.repeated else values

    def spread(self, cache: SlotCache) -> None:
        """Copy the slots and states of a cache that has read the distinct prompts, so that every row has its own."""
        if self.repeated:
            cache.take(self.prompt)
