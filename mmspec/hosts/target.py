"""A transformers decoder as a target: prefill, tree pass, commit.

Any decoder with key-value attention: what a model's pattern of attention is, is transformers' business (masks), and
whether a tree goes through it exactly is found out on first use (self-check).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel

from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Raw, Started
from mmspec.hosts import prefill
from mmspec.hosts.anatomy import Anatomy
from mmspec.hosts.export import export
from mmspec.hosts.self_check import checked
from mmspec.hosts.slot_cache import SlotCache


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

    def __init__(self, model: PreTrainedModel, guest: bool = False) -> None:
        self.anatomy = Anatomy.of(model)
        self.guest = guest
        self.vocab: int | None = self.anatomy.vocab
        self.context: int | None = self.anatomy.context
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
            given = self._own(given)
            if not given["input_ids"].shape[1]:
                return self._nothing(given["input_ids"], limit, width)
        self.passes = checked(self.anatomy)  # the model may have moved since
        ids, mask = self._prompt(given)
        if prefill.is_plain(given, mask):
            slots = self._slots(len(ids), int(mask.sum(1).max()), limit, width, ids.device)
            logits = prefill.chunked(self.passes, slots, ids, mask)
        else:
            logits, filled, mask, following = prefill.stock(self.anatomy, ids, given)
            slots = self._slots(len(ids), int(mask.sum(1).max()), limit, width, ids.device)
            prefill.adopt(slots, filled, mask, following)
        memory = Memory(slots, mask, given.get("past_key_values"))
        return Started(memory, Raw(logits=logits[:, None]), ids, _padding(mask, ids))

    @torch.no_grad()
    def verify(self, cache: Memory, draft: Draft, first: int = 0) -> Raw:
        slots = cache.slots
        slots.scratch = not draft.index.is_chain
        valid = None if draft.index.nodes == 1 else draft.valid[:, first:]
        return Raw(logits=self.passes(slots, draft.units[:, first:], draft.index, first=first, valid=valid))

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
        cache.slots.length = cache.mask.sum(1) + emitted - 1  # rows that were cut had run ahead
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

    def _own(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What a guest reads: ids and their mask, and pictures if it can see; nothing that the other model made."""
        sees = hasattr(self.model.config, "vision_config")
        foreign = {"past_key_values", "inputs_embeds", "position_ids"}
        # `generate` encodes pictures before anyone else sees the call: they can be read by a model of the same width.
        if not all(self._reads(output) for output in (given.get("mm_encoder_outputs") or {}).values()):
            foreign.add("mm_encoder_outputs")
        read = {name: value for name, value in given.items() if sees and name not in foreign}
        ids, mask = given.get("input_ids"), given.get("attention_mask")
        if ids is None:
            raise ValueError("a draft model reads token ids: give input_ids, beside inputs_embeds if need be")
        # A mask over an earlier turn is longer than the ids that are new; that turn is not read.
        return {**read, "input_ids": ids, "attention_mask": None if mask is None else mask[:, -ids.shape[1] :]}

    def _reads(self, output: Any) -> bool:
        """Whether features of a picture are as wide as this model's own embeddings."""
        features = getattr(output, "pooler_output", None)
        parts = features if isinstance(features, list | tuple) else [features]
        width = self.anatomy.config.hidden_size
        return all(isinstance(part, Tensor) and part.shape[-1] == width for part in parts)

    def _nothing(self, ids: Tensor, limit: int, width: int) -> Started:
        """The start of a call whose prompt has no text: what is emitted is all that is ever read."""
        mask = torch.ones_like(ids)
        memory = Memory(self._slots(len(ids), 0, limit, width, ids.device), mask)
        logits = torch.zeros(len(ids), 1, self.anatomy.vocab, device=ids.device)
        return Started(memory, Raw(logits=logits), ids, mask.sum(1))

    def _slots(self, rows: int, longest: int, limit: int, width: int, device: torch.device) -> SlotCache:
        slots = SlotCache(self.anatomy.layers(), rows, longest + limit + width, device)
        if self.context is not None and longest > self.context:
            raise ValueError(f"the prompt has {longest} tokens and the model's context is {self.context}; shorten it")
        reach = self.anatomy.reach
        if reach is not None and (slots.capacity if self.anatomy.by_slot else longest + limit) > reach:
            raise ValueError(
                f"{longest} tokens of prompt and {limit} new ones go beyond position {reach}, and {self.anatomy.why}: "
                "drafts could not be verified exactly; ask for fewer tokens, or disable() first"
            )
        return slots

    def _prompt(self, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        embeds, ids = inputs.get("inputs_embeds"), inputs.get("input_ids")
        if ids is None:
            if embeds is None:
                raise ValueError("a prompt is needed: input_ids or inputs_embeds")
            ids = torch.zeros(len(embeds), 0, dtype=torch.int64, device=embeds.device)
        given = inputs.get("attention_mask")
        mask = torch.ones_like(ids) if given is None else given.long()
        if ids.dim() != 2 or (embeds is None and (ids.shape[1] == 0 or not bool(mask.any(1).all()))):
            raise ValueError("an empty prompt cannot be continued; give at least one token in every row")
        if mask.shape[1] and not bool(mask[:, -1].all()):
            raise ValueError("the attention mask has padding on the right; pad on the left (padding_side='left')")
        if ids.numel():
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or (self.vocab is not None and high >= self.vocab):
                strange = low if low < 0 else high
                raise ValueError(
                    f"token id {strange} is outside the model's vocabulary of {self.vocab}; wrong tokenizer"
                )
        return ids, mask


def _padding(mask: Tensor, ids: Tensor) -> Tensor:
    """Padding on the left of every row of `ids`: `[batch]`. Holes further in are units like others."""
    own = mask[:, mask.shape[1] - ids.shape[1] :]
    return (own.cumsum(1) == 0).sum(1)
