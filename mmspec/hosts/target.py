"""A transformers decoder as a target: prefill, tree pass, commit.

First slice: the Llama family (rotary positions, full attention, grouped queries).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Raw, Started
from mmspec.hosts.attention import tree_attention
from mmspec.hosts.masks import tree_mask
from mmspec.hosts.slot_cache import SlotCache

SUPPORTED = frozenset({"llama"})
"""Values of `config.model_type` that this host takes."""

CHUNK = 512
"""Units per pass of a prefill."""


class TransformersTarget:
    """A decoder-only model of transformers.

    Args:
        model: The live model; never changed outside a pass.

    Raises:
        ValueError: The architecture is not supported.
    """

    offers = frozenset({"discrete", "tree", "text", "truncate"})

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config
        if config.model_type not in SUPPORTED:
            raise ValueError(
                f"no target for the architecture {config.model_type!r}; supported: {', '.join(sorted(SUPPORTED))}"
            )
        self.model = model
        self.vocab: int | None = config.vocab_size
        self.context: int | None = config.max_position_embeddings

    @torch.no_grad()
    def start(self, inputs: Any, limit: int, width: int) -> Started:
        """Prefill `inputs`: ids `[batch, prompt]`, or a mapping of `input_ids` and `attention_mask` (left padding)."""
        ids, mask = self._prompt(inputs)
        pads = mask.shape[1] - mask.sum(1)
        lengths = mask.sum(1)
        rows, longest = len(ids), int(lengths.max())
        cache = Memory(self.model.config.num_hidden_layers, rows, longest + limit + width, ids.device)
        # Rows move to the left edge; what is then behind a row's end is overwritten before anyone looks at it.
        order = torch.arange(longest, device=ids.device)
        aligned = ids.gather(1, (pads[:, None] + order).clamp(max=ids.shape[1] - 1))
        logits = self._prefill(cache, aligned, lengths)
        cache.length = lengths
        return Started(cache, Raw(logits=logits[:, None]), ids, pads)

    @torch.no_grad()
    def verify(self, cache: "Memory", draft: Draft) -> Raw:
        cache.moved = not draft.index.is_chain
        return Raw(logits=self._pass(cache, draft.units, draft.index))

    def commit(self, cache: "Memory", path: Tensor, count: Tensor) -> None:
        cache.commit(path, count, cache.moved)

    def truncate(self, cache: "Memory", length: Tensor) -> None:
        cache.length = length

    def _pass(self, cache: "Memory", ids: Tensor, index: TreeIndex, keep: Tensor | int = 0) -> Tensor:
        cache.open(ids.shape[1])
        with tree_attention(self.model):
            return self.model(
                input_ids=ids,
                attention_mask=tree_mask(cache.length, index.ancestor, cache.visible),
                position_ids=cache.length[:, None] + index.depth,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=keep,
            ).logits

    def _prefill(self, cache: "Memory", ids: Tensor, lengths: Tensor) -> Tensor:
        """Logits after every row's last unit: `[batch, vocab]`; no chunk computes more logits than that."""
        last = lengths - 1
        result: Tensor | None = None
        for first in range(0, ids.shape[1], CHUNK):
            chunk = ids[:, first : first + CHUNK]
            inside = (last >= first) & (last < first + chunk.shape[1])
            wanted, place = torch.unique(torch.where(inside, last - first, 0), return_inverse=True)
            logits = self._pass(cache, chunk, TreeIndex.chain(chunk.shape[1], ids.device), keep=wanted)
            own = logits.gather(1, place[:, None, None].expand(-1, 1, logits.shape[-1]))[:, 0]
            result = own if result is None else torch.where(inside[:, None], own, result)
            cache.length = cache.length + chunk.shape[1]
        assert result is not None
        return result

    def _prompt(self, inputs: Any) -> tuple[Tensor, Tensor]:
        ids: Tensor = inputs["input_ids"] if isinstance(inputs, Mapping) else inputs
        given = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
        mask = torch.ones_like(ids) if given is None else given.long()
        if ids.dim() != 2 or ids.shape[1] == 0 or not bool(mask.any(1).all()):
            raise ValueError("an empty prompt cannot be continued; give at least one token in every row")
        if bool((mask.diff(dim=1) < 0).any()):
            raise ValueError(
                "the attention mask has a hole or padding on the right; pad on the left (tokenizer.padding_side='left')"
            )
        longest = int(mask.sum(1).max())
        if self.context is not None and longest > self.context:
            raise ValueError(f"the prompt has {longest} tokens and the model's context is {self.context}; shorten it")
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or (self.vocab is not None and high >= self.vocab):
            strange = low if low < 0 else high
            raise ValueError(f"token id {strange} is outside the model's vocabulary of {self.vocab}; wrong tokenizer?")
        return ids, mask


class Memory(SlotCache):
    """One call's cache; `moved`: whether the last pass was over a tree, whose accepted nodes must be gathered."""

    moved = False
