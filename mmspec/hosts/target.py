"""A decoder-only model of transformers as a target: prefill, tree pass, commit.

It takes any decoder with key-value attention, and recurrent layers for which a plugin brings tree operations. The
attention pattern of a model comes from transformers' masks, and the self-check finds out on first use whether a tree
goes through the model exactly.
"""

import copy
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel

from mmspec.core.capabilities import CapturedPass
from mmspec.core.guided import NULL_INPUTS
from mmspec.core.hidden import Lent
from mmspec.core.live import bucket
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.hosts import prefill, prompt, rings
from mmspec.hosts.anatomy import Anatomy
from mmspec.hosts.attention import model_lock
from mmspec.hosts.buffer_cache import BufferCache, captured_shape
from mmspec.hosts.captured_halves import CapturedHalves
from mmspec.hosts.captured_pass import CapturedTransformersPass
from mmspec.hosts.devices import half_on_gpu
from mmspec.hosts.experts import one_by_one
from mmspec.hosts.export import export, refuse_cache
from mmspec.hosts.features import Reading, checked_boundaries
from mmspec.hosts.halves import Halves, stacked
from mmspec.hosts.lengths import refuse_length
from mmspec.hosts.linear import renew
from mmspec.hosts.offers import ATTENTION, RECURRENT
from mmspec.hosts.one_shape_limits import warn_of_limits
from mmspec.hosts.passes import Passes, cache_name
from mmspec.hosts.self_check import checked, compare_calls
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.stock_generate import StockGenerate
from mmspec.hosts.target_cache import TransformersTargetCache
from mmspec.hosts.train_mode import refuse_training
from mmspec.hosts.tree_op import TreeOp


class TransformersTarget:
    """A decoder-only model of transformers.

    Args:
        model: The live model; it is unchanged outside of passes.
        drafting: Whether the model drafts in another target's calls: it then reads the part of the prompt that it can,
            and does not fill the cache that came with the call.
        ops: The tree operations of recurrent layers, by the names of the functions that they replace.
        anatomy: The facts about the model, where they are not those that its config says.

    Raises:
        ValueError: Drafts cannot be verified with this model; the message says why.
    """

    offers = ATTENTION
    boundaries: tuple[int, ...] = ()  # of layers, whose states outputs carry (`with_hidden`)
    keep_all = False  # whether layers with a window keep all units of a call, and not the latest ones in a ring

    def __init__(
        self,
        model: PreTrainedModel,
        drafting: bool = False,
        ops: Mapping[str, TreeOp] | None = None,
        anatomy: Anatomy | None = None,
    ) -> None:
        self.anatomy = Anatomy.of(model, ops) if anatomy is None else anatomy
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
                earlier turn, `pixel_values` and other inputs of vision models; the model's own prefill reads these. A
                mapping under `null_inputs` with ids and mask is what guidance leads away from, behind a prompt of ids.
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
        null = given.pop(NULL_INPUTS, None)
        if self.drafting and not given["input_ids"].shape[1]:
            return self._start_empty(passes, given["input_ids"], limit, width)
        ids, mask = prompt.read(given, self.anatomy.config.vocab_size)
        self._refuse_length(int(mask.sum(1).max()), limit, width)
        earlier = given.get("past_key_values")
        refuse_cache(self.anatomy, cache_name(self.model), earlier)
        plain, reading = prefill.is_plain(given, mask), Reading(self.anatomy, self.boundaries)
        kept = self._rings(passes, earlier, mask.shape[1], width)
        if null is not None and not plain:
            raise ValueError("guidance in two halves goes with a prompt of ids and padding alone")
        if plain:
            both = (ids, mask) if null is None else stacked((ids, mask), prompt.read(null, self.vocab))
            slots = self._slots(both[1], limit, width, fixed, kept)
            with reading as record:
                logits = prefill.prefill_chunks(passes, slots, *both)
            hidden = record.aligned(both[1].sum(1))
            hidden = None if hidden is None else hidden[: len(ids), -ids.shape[1] :]
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
                places = self.places(stock, given)
                following = stock.following() if places is None else places[..., 0]
            logits, mask = stock.logits, stock.mask
            slots = self._slots(mask, limit, width, fixed, kept)
            prefill.adopt(slots, stock.cache, mask, following)
            slots.places, slots.origin = places, slots.length
            if not self.drafting:  # a draft model need not be exact
                with model_lock(self.model):
                    compare_calls(passes, slots, stock, given)
        slots.begun = slots.length.tolist()
        cache = TransformersTargetCache(slots, passes, mask, earlier, plain, None if null is None else slots.length)
        pads = prompt.padding(mask[:, mask.shape[1] - ids.shape[1] :])
        scores, unconditional = cache.halves.apart(logits[:, None])
        return Prefill(cache, TargetOutput(logits=scores, null=unconditional), ids, pads, hidden)

    @torch.inference_mode()  # a tenth faster than no_grad for small models
    def verify(self, cache: TransformersTargetCache, draft: Draft, first: int = 0) -> TargetOutput:
        slots = cache.slots
        assert draft.index.nodes <= slots.most_nodes, "a draft is wider than the call was begun for"
        slots.scratch = not draft.index.is_chain
        if first and slots.recurrent:  # recurrent layers keep no state per node, so that all nodes run again
            whole = self.verify(cache, draft)
            return whole.take(torch.arange(first, draft.nodes, device=draft.units.device)[None])
        halves = cache.halves
        valid = None if draft.index.nodes == 1 else halves.physical(draft.valid[:, first:])
        units, index = halves.physical(draft.units[:, first:]), halves.index(draft.index)
        with Reading(self.anatomy, self.boundaries) as record:
            logits = cache.passes(slots, units, index, first=first, valid=valid, decoding=True)
        given, null = halves.apart(logits)
        hidden = record.states
        return TargetOutput(logits=given, null=null, hidden=None if hidden is None else hidden[: halves.rows])

    @torch.inference_mode()
    def commit(self, cache: TransformersTargetCache, path: Tensor, count: Tensor) -> None:
        cache.halves.commit(path, count)

    def capture_key(self, cache: TransformersTargetCache) -> Hashable:
        return captured_shape(cache.slots, bucket(cache.slots.most)), self.boundaries, cache.guided

    def captured_pass(self, cache: TransformersTargetCache, nodes: int, index: TreeIndex | None) -> CapturedPass:
        if looping := one_by_one(self.model):
            raise ValueError(f"{looping} runs one chosen expert after another, so that a pass has no fixed shape")
        if cache.guided and self.boundaries:
            raise ValueError("under guidance, states for a trained head are not read in captured rounds")
        slots = BufferCache(self.anatomy.layers(), cache.slots, bucket(cache.slots.most))
        inner = CapturedTransformersPass(cache.passes, slots, nodes, index, self.boundaries)
        halves = cache.halves
        return CapturedHalves(inner, Halves(slots, halves.rows, halves.given)) if cache.guided else inner

    def synced(self, cache: TransformersTargetCache, emitted: Sequence[int]) -> None:
        cache.halves.synced(emitted)

    def truncate(self, cache: TransformersTargetCache, length: Tensor) -> None:
        if cache.slots.recurrent:
            raise NotImplementedError("a recurrent layer keeps its last state only; it cannot go back")
        halves = cache.halves  # of both, the units behind the prompts are the same
        cache.slots.roll_back(halves.physical(length - halves.given[: halves.rows]) + halves.given)

    def takes_null(self, inputs: Mapping[str, Any], null: Mapping[str, Any]) -> bool:
        padded = not bool(null["attention_mask"].all())
        if self.anatomy.position_table and padded:
            return False  # stock guidance counts padding of the unconditional prompt as positions
        mask = inputs.get("attention_mask")
        mask = torch.ones_like(inputs["input_ids"]) if mask is None else mask.long()
        return len(null["input_ids"]) == len(inputs["input_ids"]) and prefill.is_plain(inputs, mask)

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

    def places(self, stock: StockGenerate, inputs: Mapping[str, Any]) -> Tensor | None:
        """The positions of the new units of a call, `[axes, batch, unit]`; None: they go on by one.

        Args:
            stock: The model's own call behind the prompt.
            inputs: The inputs of the call.

        Raises:
            ValueError: Positions are not those of the model's own `generate`.
        """
        return None

    def _rings(self, passes: Passes, given: Cache | None, fed: int, width: int) -> dict[int, int]:
        """The rings of a call whose prompt has `fed` columns."""
        if self.keep_all or not passes.rings:
            return {}
        return rings.rings(self.anatomy.layers(), given, min(prefill.CHUNK, fed), width)

    def _refuse_length(self, longest: int, limit: int, width: int) -> None:
        if not self.drafting:  # beyond its context a draft model drafts nothing; the call itself is possible
            refuse_length(self.anatomy, self.context, longest, limit, width)
