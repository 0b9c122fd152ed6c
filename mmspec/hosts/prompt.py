"""Reading a call's inputs: ids and padding, and the part of them that a draft model can read."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from mmspec.core.guided import NULL_INPUTS


def read(inputs: Mapping[str, Any], vocab: int | None) -> tuple[Tensor, Tensor]:
    """The ids `[batch, prompt]` int64 of a prompt (`[batch, 0]` for one of embeddings), and the mask `[batch, column]`
    int64 of the whole conversation, an earlier turn's cache included, with 1 for units and 0 for padding.

    The inputs are as a target's `start` takes them. Refuses a prompt that is empty or padded on the right, ids outside
    of the vocabulary, and ids, mask and cache that are not of one conversation.
    """
    embeds, ids = inputs.get("inputs_embeds"), inputs.get("input_ids")
    if ids is None:
        if embeds is None:
            raise ValueError("a prompt is needed: input_ids or inputs_embeds")
        ids = torch.zeros(len(embeds), 0, dtype=torch.int64, device=embeds.device)
    ids = integer_ids(ids)
    columns = conversation_columns(ids, inputs)
    mask = inputs.get("attention_mask")
    mask = ids.new_ones(len(ids), columns) if mask is None else mask.long()
    if mask.dim() != 2 or len(mask) != len(ids):
        raise ValueError(f"the attention mask has the shape {list(mask.shape)} where there are {len(ids)} prompts")
    if ids.dim() != 2 or not len(ids) or (embeds is None and (ids.shape[1] == 0 or not bool(mask.any(1).all()))):
        raise ValueError("an empty prompt cannot be continued; give at least one token in every row")
    if mask.shape[1] and not bool(mask[:, -1].all()):
        raise ValueError("the attention mask has padding on the right; pad on the left (padding_side='left')")
    if ids.numel():
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or (vocab is not None and high >= vocab):
            wrong = low if low < 0 else high
            raise ValueError(f"token id {wrong} is outside the model's vocabulary of {vocab}; wrong tokenizer")
    return ids, mask


def conversation_columns(ids: Tensor, inputs: Mapping[str, Any]) -> int:
    """The number of columns of a conversation: the columns of an earlier turn's cache, and the new ones.

    As in transformers, the mask's length says whether ids are the whole conversation or the part behind the cache.
    Embeddings are the whole conversation, and so are ids without a mask. `generate` drops a mask of ones, but keeps its
    length in the prepared configuration. `ids` are `[batch, prompt]`; `[batch, 0]` for a prompt of embeddings.
    """
    embeds, mask, cache = (inputs.get(name) for name in ("inputs_embeds", "attention_mask", "past_key_values"))
    given = ids.shape[1] if embeds is None else embeds.shape[1]
    past = 0 if cache is None else cached_columns(cache)
    told = getattr(inputs.get("generation_config"), "_mask_length", given) if mask is None else mask.shape[-1]
    if embeds is None and past and told == past + given:
        return past + given
    behind = f", behind a cache of {past} columns," if past else ""
    if told != given:
        choices = f"{given}" if embeds is not None or not past else f"{given} (the whole text) or {past + given}"
        raise ValueError(f"the attention mask has {told} columns; a prompt of {given}{behind} wants one of {choices}")
    if past and given <= past:
        raise ValueError(
            f"the cache holds {past} columns, and the prompt of {given} has nothing behind them: pass the whole text, "
            f"or its new ids with an attention_mask of all {past + given} columns"
        )
    return given


def cached_columns(cache: Cache) -> int:
    """The columns whose keys a cache of transformers holds; 0 for a cache that has states alone."""
    return int(cache.get_seq_length()) if any(isinstance(layer, CacheLayerMixin) for layer in cache.layers) else 0


def integer_ids(ids: Tensor) -> Tensor:
    """Ids of any integer dtype as int64, the dtype that transformers' `generate` returns."""
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ValueError(f"input_ids must be integers, got {ids.dtype}")
    return ids.long()


def padding(mask: Tensor) -> Tensor:
    """The number of padded columns on the left of every row: `[batch]`. Zeros further in do not count."""
    return (mask.cumsum(1) == 0).sum(1)


def for_drafting(inputs: Mapping[str, Any], model: Any, width: int, context: int | None) -> dict[str, Any]:
    """The part of another target's inputs that a draft model can read: ids and mask, and images if it has vision.

    Its embeddings have `width` numbers. Of a prompt of more than `context` units it reads the end. Refuses inputs
    without ids.
    """
    ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if ids is None:
        raise ValueError("a draft model reads token ids: give input_ids, beside inputs_embeds if need be")
    foreign = {"past_key_values", "inputs_embeds", "position_ids"}
    # `generate` encodes images before the target sees the call; a model of the same width can read these features.
    if not all(_has_width(output, width) for output in (inputs.get("mm_encoder_outputs") or {}).values()):
        foreign.add("mm_encoder_outputs")
    has_vision = hasattr(model.config, "vision_config")
    images = {name: value for name, value in inputs.items() if has_vision and name not in foreign}
    if NULL_INPUTS in inputs:  # it drafts under the guidance of the call
        images[NULL_INPUTS] = inputs[NULL_INPUTS]
    if context is not None and ids.shape[1] > context:
        images, ids = {}, ids[:, -context:]
    # A mask that covers an earlier turn is longer than the new ids; that turn is not read.
    return {
        **images,
        "input_ids": ids,
        "attention_mask": None if mask is None else mask[:, mask.shape[1] - ids.shape[1] :],
    }


def _has_width(output: Any, width: int) -> bool:
    features = getattr(output, "pooler_output", None)
    parts = features if isinstance(features, list | tuple) else [features]
    return all(isinstance(part, Tensor) and part.shape[-1] == width for part in parts)


def as_ids(given: Tensor | Sequence[int]) -> Tensor:
    """Ids as users give them, `[n]`; their range is the target's to check."""
    ids = given if isinstance(given, Tensor) else torch.tensor(list(given))
    return ids.long() if not ids.numel() else ids.squeeze(0) if ids.dim() == 2 else ids
