"""A transformers decoder as a target: prefill, tree pass, commit.

Any decoder with key-value attention, and with recurrent layers where a plugin brings their tree operations: what a
model's pattern of attention is, is transformers' business (masks), and whether a tree goes through it exactly is found
out on first use (self-check).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel

from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Started, TargetOutput
from mmspec.hosts import prefill, prompt
from mmspec.hosts.anatomy import Anatomy
from mmspec.hosts.attention import model_lock
from mmspec.hosts.export import export, refuse_foreign
from mmspec.hosts.linear import renew
from mmspec.hosts.passes import cache_name
from mmspec.hosts.self_check import checked, compare_calls
from mmspec.hosts.slot_cache import BLOCK, SlotCache
from mmspec.hosts.stock_generate import StockGenerate
from mmspec.hosts.train_mode import refuse_training
from mmspec.hosts.tree_op import TreeOp
from mmspec.registry.warn import warn


@dataclass
class TransformersTargetCache:
    """One call's memory.

    Attributes:
        slots: Keys, values and states.
        mask: `[batch, prompt]`: columns of the prompt, as transformers counts them, that are units.
        given: The cache that the call came with, to be returned filled; or None.
        plain: Whether the prompt was ids and padding alone.
    """

    slots: SlotCache
    mask: Tensor
    given: Cache | None = None
    plain: bool = True


class TransformersTarget:
    """A decoder-only model of transformers.

    Args:
        model: The live model; never changed outside a pass.
        drafting: It drafts in another target's call: of the prompt it reads what it can, and that call's cache it
            leaves alone.
        ops: Tree operations of recurrent layers, by the names of the functions that they stand for.

    Raises:
        ValueError: The architecture cannot be speculated over; says why.
    """

    offers = frozenset({"discrete", "tree", "text", "grow", "truncate"})
    example = "mmspec.testing.conformance.tiny:transformers"

    def __init__(self, model: PreTrainedModel, drafting: bool = False, ops: Mapping[str, TreeOp] | None = None) -> None:
        self.anatomy = Anatomy.of(model, ops)
        self.drafting = drafting
        if self.anatomy.ops:  # a state that took a unit in cannot forget it
            self.offers = type(self).offers - {"truncate"}
        self.vocab: int | None = self.anatomy.vocab
        ends = (self.anatomy.context, self.anatomy.reach if drafting else None)
        self.context: int | None = min((end for end in ends if end is not None), default=None)
        self.passes = checked(self.anatomy)

    @property
    def model(self) -> Any:
        """The live model."""
        return self.anatomy.model

    @torch.no_grad()
    def start(self, inputs: Any, limit: int, width: int) -> Started:
        """Prefill `inputs`: ids `[batch, prompt]` (padded on the left), or a mapping of what the model's forward takes.

        Besides `input_ids` and `attention_mask`, a mapping may hold `inputs_embeds`, `pixel_values` and their like,
        `past_key_values` of an earlier turn, `position_ids`: the model's own prefill reads them.
        """
        refuse_training(self.model, "draft model" if self.drafting else "model")
        given = dict(inputs) if isinstance(inputs, Mapping) else {"input_ids": inputs}
        if given.get("cache_params") is not None:  # models without keys call their cache so
            given["past_key_values"] = given.pop("cache_params")
        if self.drafting:
            given = prompt.for_drafting(given, self.model, self.anatomy.config.hidden_size, self.context)
            if not given["input_ids"].shape[1]:
                return self._nothing(given["input_ids"], limit, width)
        self.passes = checked(self.anatomy)  # the model may have moved since
        renew(self.passes.kernels)
        ids, mask = prompt.read(given, self.vocab)
        self._refuse_length(int(mask.sum(1).max()), limit, width)
        earlier = given.get("past_key_values")
        self._refuse_cache(earlier)
        plain = prefill.is_plain(given, mask)
        if plain:
            slots = self._slots(mask, limit, width)
            logits = prefill.prefill_chunks(self.passes, slots, ids, mask)
        elif self.anatomy.ops and earlier is not None and prefill.holds_units(earlier):
            slots = self._slots(mask, limit, width)
            logits, mask = prefill.continue_from(self.passes, slots, ids, earlier, mask)
        else:
            with model_lock(self.model):
                loop = StockGenerate(self.anatomy, ids, given)
                following = loop.following()
            logits, mask = loop.logits, loop.mask
            slots = self._slots(mask, limit, width)
            prefill.adopt(slots, loop.cache, mask, following)
            if not self.drafting:  # of whom nothing is promised
                with model_lock(self.model):
                    compare_calls(self.passes, slots, loop, given)
        memory = TransformersTargetCache(slots, mask, earlier, plain)
        return Started(
            memory, TargetOutput(logits=logits[:, None]), ids, prompt.padding(mask[:, mask.shape[1] - ids.shape[1] :])
        )

    @torch.inference_mode()  # a tenth less than no_grad, where a pass costs what its small operations cost
    def verify(self, cache: TransformersTargetCache, draft: Draft, first: int = 0) -> TargetOutput:
        slots = cache.slots
        slots.scratch = not draft.index.is_chain
        if first and slots.recurrent:  # what a state has taken in is not kept node by node: the draft begins anew
            return self._from(self.verify(cache, draft), first)
        valid = None if draft.index.nodes == 1 else draft.valid[:, first:]
        return TargetOutput(logits=self.passes(slots, draft.units[:, first:], draft.index, first=first, valid=valid))

    @torch.inference_mode()
    def commit(self, cache: TransformersTargetCache, path: Tensor, count: Tensor) -> None:
        cache.slots.commit(path, count)

    def truncate(self, cache: TransformersTargetCache, length: Tensor) -> None:
        if cache.slots.recurrent:
            raise NotImplementedError("a recurrent layer keeps its last state only; it cannot go back")
        cache.slots.length = length

    @torch.no_grad()
    def export(self, cache: TransformersTargetCache, sequences: Tensor, emitted: Tensor) -> Cache | None:
        """The call's cache as transformers returns it: everything but the last column of `sequences`.

        Args:
            cache: After the last round.
            sequences: `[batch, prompt + longest]`, rows that ended earlier padded as transformers pads them.
            emitted: `[batch]` units that each row emitted.

        Returns:
            The cache; None where recurrent layers had run ahead of a row that was cut, behind a prompt that cannot be
            read again.
        """
        reached = cache.mask.shape[1] - prompt.padding(cache.mask) + emitted - 1
        if cache.slots.recurrent and bool((cache.slots.length != reached).any()):
            if not cache.plain:
                return None
            cache.slots = self._again(cache, sequences, reached)
        cache.slots.length = reached  # cut rows had run ahead
        longest = int(emitted.max())
        ends = sequences.shape[1] - longest + emitted  # column behind a row's last unit
        order = torch.arange(max(1, longest - int(emitted.min())), device=sequences.device)
        columns = (ends - 1)[:, None] + order
        # A row that ended goes on with its last unit and padding: stock decoding feeds them too.
        units = sequences.gather(1, columns.clamp(max=sequences.shape[1] - 1))
        wanted = longest - emitted
        if bool((wanted > 0).any()):
            index = TreeIndex.chain(units.shape[1], units.device)
            cache.slots.scratch = False
            self.passes(cache.slots, units, index, valid=order < wanted[:, None])
            cache.slots.commit(order[1:].expand(len(units), -1), wanted)
        into = cache.given
        if type(into) is not DynamicCache:
            into = DynamicCache(config=self.model.config)
        return export(cache.slots, into, cache.mask, cache.mask.shape[1] + longest - 1)

    def _again(self, cache: TransformersTargetCache, sequences: Tensor, lengths: Tensor) -> SlotCache:
        """A cache of the first `lengths [batch]` units of every row, padding not counted."""
        longest = int(lengths.max())
        order = torch.arange(longest, device=sequences.device)
        last = prompt.padding(cache.mask) + lengths
        ids = sequences.gather(1, ((last - longest)[:, None] + order).clamp(min=0))
        slots = self._slots(cache.mask, sequences.shape[1], 1)
        prefill.prefill_chunks(self.passes, slots, ids, (order >= longest - lengths[:, None]).long())
        return slots

    @staticmethod
    def _from(output: TargetOutput, first: int) -> TargetOutput:
        assert output.logits is not None
        return TargetOutput(logits=output.logits[:, first:])

    def _nothing(self, ids: Tensor, limit: int, width: int) -> Started:
        """The start of a call whose prompt has no text: what is emitted is all that is ever read."""
        mask = torch.ones_like(ids)
        memory = TransformersTargetCache(self._slots(mask, limit, width), mask)
        logits = torch.zeros(len(ids), 1, self.anatomy.vocab, dtype=torch.float32, device=ids.device)
        return Started(memory, TargetOutput(logits=logits), ids, mask.sum(1))

    def _slots(self, mask: Tensor, limit: int, width: int) -> SlotCache:
        longest = int((mask.shape[1] - prompt.padding(mask)).max()) if mask.shape[1] else 0
        self._refuse_length(longest, limit, width)
        return SlotCache(self.anatomy.layers(), len(mask), longest + limit + width, mask.device)

    def _refuse_cache(self, given: Cache | None) -> None:
        if given is not None and prefill.holds_units(given):
            refuse_foreign(cache_name(self.model), given)
        recurrent = [i for i, layer in enumerate(self.anatomy.layers()) if hasattr(layer, "recurrent_states")]
        layers = () if given is None else given.layers
        if given is None or all(i < len(layers) and hasattr(layers[i], "recurrent_states") for i in recurrent):
            return
        raise ValueError(
            f"{cache_name(self.model)} is a {type(given).__name__} without a place for this model's states; make it "
            "with DynamicCache(config=model.config)"
        )

    def _refuse_length(self, longest: int, limit: int, width: int) -> None:
        if self.drafting:  # beyond its end a drafter has nothing to say; that is no reason to refuse the call
            return
        if self.context is not None and longest > self.context:
            raise ValueError(f"the prompt has {longest} tokens and the model's context is {self.context}; shorten it")
        if self.context is not None and self.anatomy.table and longest + limit - 1 > self.context:
            warn(
                f"{longest} tokens of prompt and {limit} new ones do not fit the model's table of {self.context} "
                "positions; where transformers fails, text goes on at the last position: ask for fewer tokens"
            )
        reach, slots = self.anatomy.reach, -(-(longest + limit + width) // BLOCK) * BLOCK
        if reach is not None and (slots if self.anatomy.by_slot else longest + limit) > reach:
            raise ValueError(
                f"{longest} tokens of prompt and {limit} new ones go beyond position {reach}, and {self.anatomy.why}: "
                "drafts could not be verified exactly; ask for fewer tokens, or disable() first"
            )
