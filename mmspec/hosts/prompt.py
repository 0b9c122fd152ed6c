"""Reading a call's inputs: ids and padding, and the part of them that a draft model can read."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mmspec.core.guided import NULL_INPUTS


def read(inputs: Mapping[str, Any], vocab: int | None) -> tuple[Tensor, Tensor]:
    """The ids and the mask of a prompt.

    Args:
        inputs: The inputs as a target's `start` takes them.
        vocab: The number of token ids.

    Returns:
        Ids `[batch, prompt]` int64 (`[batch, 0]` for a prompt of embeddings), and the mask `[batch, column]` int64 with
        1 for units and 0 for padding.

    Raises:
        ValueError: The prompt is empty, is padded on the right, or has an id that is no integer or outside the
            vocabulary.
    """
    embeds, ids = inputs.get("inputs_embeds"), inputs.get("input_ids")
    if ids is None:
        if embeds is None:
            raise ValueError("a prompt is needed: input_ids or inputs_embeds")
        ids = torch.zeros(len(embeds), 0, dtype=torch.int64, device=embeds.device)
    ids = integer_ids(ids)
    mask = inputs.get("attention_mask")
    mask = torch.ones_like(ids) if mask is None else mask.long()
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


def integer_ids(ids: Tensor) -> Tensor:
    """Ids of any integer dtype as int64, the dtype that transformers' `generate` returns.

    Raises:
        ValueError: The ids are no integers.
    """
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ValueError(f"input_ids must be integers, got {ids.dtype}")
    return ids.long()


def padding(mask: Tensor) -> Tensor:
    """The number of padded columns on the left of every row: `[batch]`. Zeros further in do not count."""
    return (mask.cumsum(1) == 0).sum(1)


def for_drafting(inputs: Mapping[str, Any], model: Any, width: int, context: int | None) -> dict[str, Any]:
    """The part of another target's inputs that a draft model can read: ids and mask, and images if it has vision.

    Args:
        inputs: The inputs of the call.
        model: The draft model.
        width: The width of its embeddings.
        context: The most units that it can read; of a longer prompt it reads the end. None: no limit.

    Raises:
        ValueError: The inputs have no ids.
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
    """Whether the features of an image encoder have a given width."""
    features = getattr(output, "pooler_output", None)
    parts = features if isinstance(features, list | tuple) else [features]
    return all(isinstance(part, Tensor) and part.shape[-1] == width for part in parts)
