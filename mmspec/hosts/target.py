"""A transformers decoder as a target: prefill, tree pass, commit.

Any decoder with key-value attention: what a model's pattern of attention is, is transformers' business (masks), and
whether a tree goes through it exactly is found out on first use (self-check).
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel

from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Raw, Started
from mmspec.hosts import prefill, prompt
from mmspec.hosts.anatomy import Anatomy
from mmspec.hosts.export import export
from mmspec.hosts.linear import renew
from mmspec.hosts.self_check import checked
from mmspec.hosts.slot_cache import BLOCK, SlotCache


@dataclass
class Memory:
    """One call's memory.

    Attributes:
        slots: Keys and values.
        mask: `[batch, prompt]`: columns of the prompt, as transformers counts them, that are units.
        given: The cache that the call came with, to be returned filled; or None.
    """

    slots: SlotCache
    mask: Tensor
    given: Cache | None = None


class TransformersTarget:
    """A decoder-only model of transformers.

    Args:
        model: The live model; never changed outside a pass.
        guest: It drafts in another target's call: of the prompt it reads what it can, and that call's cache it leaves
            alone.

    Raises:
        ValueError: The architecture cannot be speculated over; says why.
    """

    offers = frozenset({"discrete", "tree", "text", "grow", "truncate"})
    example = "mmspec.testing.conformance.tiny:transformers"

    def __init__(self, model: PreTrainedModel, guest: bool = False) -> None:
        self.anatomy = Anatomy.of(model)
        self.guest = guest
        self.vocab: int | None = self.anatomy.vocab
        ends = (self.anatomy.context, self.anatomy.reach if guest else None)
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
        given = dict(inputs) if isinstance(inputs, Mapping) else {"input_ids": inputs}
        if self.guest:
            given = prompt.as_guest(given, self.model, self.anatomy.config.hidden_size, self.context)
            if not given["input_ids"].shape[1]:
                return self._nothing(given["input_ids"], limit, width)
        self.passes = checked(self.anatomy)  # the model may have moved since
        renew(self.passes.kernels)
        ids, mask = prompt.read(given, self.vocab)
        self._refuse_length(int(mask.sum(1).max()), limit, width)
        if prefill.is_plain(given, mask):
            slots = self._slots(mask, limit, width)
            logits = prefill.chunked(self.passes, slots, ids, mask)
        else:
            logits, filled, mask, following = prefill.stock(self.anatomy, ids, given)
            slots = self._slots(mask, limit, width)
            prefill.adopt(slots, filled, mask, following)
        memory = Memory(slots, mask, given.get("past_key_values"))
        return Started(
            memory, Raw(logits=logits[:, None]), ids, prompt.padding(mask[:, mask.shape[1] - ids.shape[1] :])
        )

    @torch.inference_mode()  # a tenth less than no_grad, where a pass costs what its small operations cost
    def verify(self, cache: Memory, draft: Draft, first: int = 0) -> Raw:
        slots = cache.slots
        slots.scratch = not draft.index.is_chain
        valid = None if draft.index.nodes == 1 else draft.valid[:, first:]
        return Raw(logits=self.passes(slots, draft.units[:, first:], draft.index, first=first, valid=valid))

    @torch.inference_mode()
    def commit(self, cache: Memory, path: Tensor, count: Tensor) -> None:
        cache.slots.commit(path, count)

    def truncate(self, cache: Memory, length: Tensor) -> None:
        cache.slots.length = length

    @torch.no_grad()
    def export(self, cache: Memory, sequences: Tensor, emitted: Tensor) -> Cache:
        """The call's cache as transformers returns it: everything but the last column of `sequences`.

        Args:
            cache: After the last round.
            sequences: `[batch, prompt + longest]`, rows that ended earlier padded as transformers pads them.
            emitted: `[batch]` units that each row emitted.
        """
        cache.slots.length = cache.mask.shape[1] - prompt.padding(cache.mask) + emitted - 1  # cut rows had run ahead
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
            cache.slots.length = cache.slots.length + wanted
        into = cache.given
        if type(into) is not DynamicCache:
            into = DynamicCache(config=self.model.config)
        return export(cache.slots, into, cache.mask, cache.mask.shape[1] + longest - 1)

    def _nothing(self, ids: Tensor, limit: int, width: int) -> Started:
        """The start of a call whose prompt has no text: what is emitted is all that is ever read."""
        mask = torch.ones_like(ids)
        memory = Memory(self._slots(mask, limit, width), mask)
        logits = torch.zeros(len(ids), 1, self.anatomy.vocab, device=ids.device)
        return Started(memory, Raw(logits=logits), ids, mask.sum(1))

    def _slots(self, mask: Tensor, limit: int, width: int) -> SlotCache:
        longest = int((mask.shape[1] - prompt.padding(mask)).max()) if mask.shape[1] else 0
        self._refuse_length(longest, limit, width)
        return SlotCache(self.anatomy.layers(), len(mask), longest + limit + width, mask.device)

    def _refuse_length(self, longest: int, limit: int, width: int) -> None:
        if self.guest:  # beyond its end a drafter has nothing to say; that is no reason to refuse the call
            return
        if self.context is not None and longest > self.context:
            raise ValueError(f"the prompt has {longest} tokens and the model's context is {self.context}; shorten it")
        if self.context is not None and self.anatomy.table and longest + limit - 1 > self.context:
            warnings.warn(
                f"{longest} tokens of prompt and {limit} new ones do not fit the model's table of {self.context} "
                "positions; where transformers fails, text goes on at the last position: ask for fewer tokens",
                stacklevel=2,
            )
        reach, slots = self.anatomy.reach, -(-(longest + limit + width) // BLOCK) * BLOCK
        if reach is not None and (slots if self.anatomy.by_slot else longest + limit) > reach:
            raise ValueError(
                f"{longest} tokens of prompt and {limit} new ones go beyond position {reach}, and {self.anatomy.why}: "
                "drafts could not be verified exactly; ask for fewer tokens, or disable() first"
            )
