"""A decoder-only model of transformers as a target: prefill, tree pass, commit.

It takes any decoder with key-value attention, and recurrent layers for which a plugin brings tree operations. The
attention pattern of a model comes from transformers' masks, and the self-check finds out on first use whether a tree
goes through the model exactly.
"""

import copy
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel

from mmspec.core.hidden import Lent
from mmspec.core.live import bucket
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.hosts import prefill, prompt, rings
from mmspec.hosts.anatomy import Anatomy
from mmspec.hosts.attention import model_lock
from mmspec.hosts.buffer_cache import BufferCache, captured_shape
from mmspec.hosts.captured_pass import CapturedTransformersPass
from mmspec.hosts.devices import half_on_gpu
from mmspec.hosts.experts import one_by_one
from mmspec.hosts.export import export, refuse_cache
from mmspec.hosts.features import Reading, checked_boundaries
from mmspec.hosts.lengths import refuse_length
from mmspec.hosts.linear import renew
from mmspec.hosts.offers import ATTENTION, RECURRENT
from mmspec.hosts.one_shape_limits import warn_of_limits
from mmspec.hosts.passes import Passes, cache_name
from mmspec.hosts.self_check import checked, compare_calls
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.stock_generate import StockGenerate
from mmspec.hosts.train_mode import refuse_training
from mmspec.hosts.tree_op import TreeOp


@dataclass
class TransformersTargetCache:
    """What the target keeps of one call.

    Attributes:
        slots: Keys, values and states.
        passes: Runs the model; found when the call began, because the model may have been moved or cast before.
        mask: `[batch, prompt]` int64: 1 for units, 0 for padding, of the prompt's columns as transformers counts them.
        given: The cache that the call came with, which `export` fills and returns; or None.
        plain: Whether the prompt was ids and padding alone.
    """

    slots: SlotCache
    passes: Passes
    mask: Tensor
    given: Cache | None = None
    plain: bool = True


class TransformersTarget:
    """A decoder-only model of transformers.

    Args:
        model: The live model; it is unchanged outside of passes.
        drafting: Whether the model drafts in another target's calls: it then reads the part of the prompt that it can,
            and does not fill the cache that came with the call.
        ops: The tree operations of recurrent layers, by the names of the functions that they replace.

    Raises:
        ValueError: Drafts cannot be verified with this model; the message says why.
    """

    offers = ATTENTION
    boundaries: tuple[int, ...] = ()  # of layers, whose states outputs carry (`with_hidden`)
    keep_all = False  # whether layers with a window keep all units of a call, and not the latest ones in a ring

    def __init__(self, model: PreTrainedModel, drafting: bool = False, ops: Mapping[str, TreeOp] | None = None) -> None:
        self.anatomy = Anatomy.of(model, ops)
        self.drafting = drafting
        if self.anatomy.ops:  # a state that took a unit in cannot forget it
            self.offers = RECURRENT
        self.vocab: int | None = self.anatomy.vocab
        ends = (self.anatomy.context, self.anatomy.reach if drafting else None)
        self.context: int | None = min((end for end in ends if end is not None), default=None)
        self.passes = checked(self.anatomy)

    @property
    def model(self) -> Any:
        """The live model."""
        return self.anatomy.model

    def layers(self) -> int:
        return len(self.anatomy.language.layers)

    @property
    def hidden_size(self) -> int:
        return int(self.anatomy.config.hidden_size)

    def with_hidden(self, boundaries: Sequence[int]) -> "TransformersTarget":
        other = copy.copy(self)
        other.boundaries = checked_boundaries(self.anatomy, boundaries)
        return other

    def lend(self) -> Lent:
        model = self.model
        return Lent(model.get_input_embeddings(), model.get_output_embeddings(), model.device, model.dtype)

    def start(self, inputs: Any, limit: int, width: int) -> Prefill:
        """Prefill a prompt.

        Args:
            inputs: Ids `[batch, prompt]`, padded on the left, or a mapping of arguments of the model's forward. Besides
                `input_ids` and `attention_mask` it may hold `inputs_embeds`, `position_ids`, `past_key_values` of an
                earlier turn, `pixel_values` and other inputs of vision models; the model's own prefill reads these.
            limit: New units wanted per row.
            width: The most nodes of a draft, root included.

        Raises:
            ValueError: The prompt is empty, does not fit, or cannot be continued exactly.
        """
        return self._begin(inputs, limit, width)

    def start_fixed(self, inputs: Any, limit: int, width: int) -> Prefill:
        prefill = self._begin(inputs, limit, width, fixed=True)
        warn_of_limits(prefill.cache.passes, prefill.cache.slots, len(prefill.prompt) * width)
        return prefill

    @property
    def prefers_one_shape(self) -> bool:
        return half_on_gpu(self.model)

    @torch.no_grad()
    def _begin(self, inputs: Any, limit: int, width: int, fixed: bool = False) -> Prefill:
        """`start`, with a cache whose passes have one shape if `fixed`."""
        refuse_training(self.model, "draft model" if self.drafting else "model")
        given = dict(inputs) if isinstance(inputs, Mapping) else {"input_ids": inputs}
        if given.get("cache_params") is not None:  # the argument of models without keys
            given["past_key_values"] = given.pop("cache_params")
        if self.drafting:
            given = prompt.for_drafting(given, self.model, self.anatomy.config.hidden_size, self.context)
        passes = checked(self.anatomy)
        renew(passes.kernels)
        if self.drafting and not given["input_ids"].shape[1]:
            return self._start_empty(passes, given["input_ids"], limit, width)
        ids, mask = prompt.read(given, self.vocab)
        self._refuse_length(int(mask.sum(1).max()), limit, width)
        earlier = given.get("past_key_values")
        refuse_cache(self.anatomy, cache_name(self.model), earlier)
        plain, reading = prefill.is_plain(given, mask), Reading(self.anatomy, self.boundaries)
        kept = self._rings(passes, earlier, mask.shape[1], width)
        if plain:
            slots = self._slots(mask, limit, width, fixed, kept)
            with reading as record:
                logits = prefill.prefill_chunks(passes, slots, ids, mask)
            hidden = record.aligned(mask.sum(1))
        elif self.anatomy.ops and earlier is not None and prefill.holds_units(earlier):
            slots = self._slots(mask, limit, width, fixed, kept)
            with reading as record:
                logits, mask = prefill.continue_from(passes, slots, ids, earlier, mask)
            hidden = record.states
        else:
            with model_lock(self.model):
                with reading as record:
                    stock = StockGenerate(self.anatomy, ids, given)
                hidden = record.states
                following = stock.following()
            logits, mask = stock.logits, stock.mask
            slots = self._slots(mask, limit, width, fixed, kept)
            prefill.adopt(slots, stock.cache, mask, following)
            if not self.drafting:  # a draft model need not be exact
                with model_lock(self.model):
                    compare_calls(passes, slots, stock, given)
        slots.begun = slots.length.tolist()
        cache = TransformersTargetCache(slots, passes, mask, earlier, plain)
        pads = prompt.padding(mask[:, mask.shape[1] - ids.shape[1] :])
        return Prefill(cache, TargetOutput(logits=logits[:, None]), ids, pads, hidden)

    @torch.inference_mode()  # a tenth faster than no_grad for small models
    def verify(self, cache: TransformersTargetCache, draft: Draft, first: int = 0) -> TargetOutput:
        slots = cache.slots
        assert draft.index.nodes <= slots.most_nodes, "a draft is wider than the call was begun for"
        slots.scratch = not draft.index.is_chain
        if first and slots.recurrent:  # recurrent layers keep no state per node, so that all nodes run again
            whole = self.verify(cache, draft)
            return whole.take(torch.arange(first, draft.nodes, device=draft.units.device)[None])
        valid = None if draft.index.nodes == 1 else draft.valid[:, first:]
        units = draft.units[:, first:]
        with Reading(self.anatomy, self.boundaries) as record:
            logits = cache.passes(slots, units, draft.index, first=first, valid=valid, decoding=True)
        return TargetOutput(logits=logits, hidden=record.states)

    @torch.inference_mode()
    def commit(self, cache: TransformersTargetCache, path: Tensor, count: Tensor) -> None:
        cache.slots.commit(path, count)

    def capture_key(self, cache: TransformersTargetCache) -> Hashable:
        return captured_shape(cache.slots, bucket(cache.slots.most)), self.boundaries

    def captured_pass(
        self, cache: TransformersTargetCache, nodes: int, index: TreeIndex | None
    ) -> CapturedTransformersPass:
        if looping := one_by_one(self.model):
            raise ValueError(f"{looping} runs one chosen expert after another, so that a pass has no fixed shape")
        slots = BufferCache(self.anatomy.layers(), cache.slots, bucket(cache.slots.most))
        return CapturedTransformersPass(cache.passes, slots, nodes, index, self.boundaries)

    def synced(self, cache: TransformersTargetCache, emitted: Sequence[int]) -> None:
        cache.slots.synced(emitted)

    def truncate(self, cache: TransformersTargetCache, length: Tensor) -> None:
        if cache.slots.recurrent:
            raise NotImplementedError("a recurrent layer keeps its last state only; it cannot go back")
        cache.slots.roll_back(length)

    @torch.no_grad()
    def export(self, cache: TransformersTargetCache, sequences: Tensor, emitted: Tensor) -> Cache | None:
        """The call's cache as transformers returns it: everything but the last column of `sequences`.

        Args:
            cache: The call's cache after the last round.
            sequences: `[batch, prompt + longest]`; rows that ended earlier are padded as transformers pads them.
            emitted: `[batch]` int64: the units that each row emitted.

        Returns:
            The cache; None if a recurrent state has more units than a row that was cut, and the prompt is not plain
            ids, so that it cannot be computed again.
        """
        reached = cache.mask.shape[1] - prompt.padding(cache.mask) + emitted - 1
        if cache.slots.recurrent and bool((cache.slots.length != reached).any()):
            if not cache.plain:
                return None
            cache.slots = self._recomputed(cache, sequences, reached)
        cache.slots.roll_back(reached)  # rows that were cut have more committed units
        longest = int(emitted.max())
        ends = sequences.shape[1] - longest + emitted  # the column behind a row's last unit
        order = torch.arange(max(1, longest - int(emitted.min())), device=sequences.device)
        columns = (ends - 1)[:, None] + order
        # A row that ended continues with its last unit and padding, as in transformers' own loop.
        units = sequences.gather(1, columns.clamp(max=sequences.shape[1] - 1))
        wanted = longest - emitted
        if bool((wanted > 0).any()):
            prefill.append(cache.passes, cache.slots, units, wanted)
        into = cache.given
        if type(into) is not DynamicCache:
            into = DynamicCache(config=self.model.config)
        return export(cache.slots, into, cache.mask, cache.mask.shape[1] + longest - 1)

    def _recomputed(self, cache: TransformersTargetCache, sequences: Tensor, lengths: Tensor) -> SlotCache:
        """A new slot cache of the first `lengths [batch]` units of every row, padding not counted."""
        longest = int(lengths.max())
        order = torch.arange(longest, device=sequences.device)
        last = prompt.padding(cache.mask) + lengths
        ids = sequences.gather(1, ((last - longest)[:, None] + order).clamp(min=0))
        slots = self._slots(cache.mask, sequences.shape[1], 1, False, {})
        prefill.prefill_chunks(cache.passes, slots, ids, (order >= longest - lengths[:, None]).long())
        return slots

    def _start_empty(self, passes: Passes, ids: Tensor, limit: int, width: int) -> Prefill:
        """Start a draft model in a call whose prompt has no ids; it will read the emitted units only."""
        mask = torch.ones_like(ids)
        slots = self._slots(mask, limit, width, False, self._rings(passes, None, 0, width))
        cache = TransformersTargetCache(slots, passes, mask)
        logits = torch.zeros(len(ids), 1, self.anatomy.vocab, dtype=torch.float32, device=ids.device)
        return Prefill(cache, TargetOutput(logits=logits), ids, mask.sum(1))

    def _slots(self, mask: Tensor, limit: int, width: int, fixed: bool, kept: Mapping[int, int]) -> SlotCache:
        longest = int((mask.shape[1] - prompt.padding(mask)).max()) if mask.shape[1] else 0
        self._refuse_length(longest, limit, width)
        return SlotCache(self.anatomy.layers(), len(mask), longest + limit + width, mask.device, fixed, kept)

    def _rings(self, passes: Passes, given: Cache | None, fed: int, width: int) -> dict[int, int]:
        """The rings of a call whose prompt has `fed` columns."""
        if self.keep_all or not passes.rings:
            return {}
        return rings.rings(self.anatomy.layers(), given, min(prefill.CHUNK, fed), width)

    def _refuse_length(self, longest: int, limit: int, width: int) -> None:
        if not self.drafting:  # beyond its context a draft model drafts nothing; the call itself is possible
            refuse_length(self.anatomy, self.context, longest, limit, width)
