"""What a call's inputs say: ids and their padding, and what a draft model may read of a call that is not its own."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def read(inputs: Mapping[str, Any], vocab: int | None) -> tuple[Tensor, Tensor]:
    """Ids `[batch, prompt]` (none of them where a prompt is embeddings), and the mask of units, `[batch, column]`.

    Args:
        inputs: As a target's `start` takes them.
        vocab: Number of token ids.

    Raises:
        ValueError: There is nothing to continue, padding is on the right, or an id is no integer or outside the
            vocabulary.
    """
    embeds, ids = inputs.get("inputs_embeds"), inputs.get("input_ids")
    if ids is None:
        if embeds is None:
            raise ValueError("a prompt is needed: input_ids or inputs_embeds")
        ids = torch.zeros(len(embeds), 0, dtype=torch.int64, device=embeds.device)
    ids = integer_ids(ids)
    given = inputs.get("attention_mask")
    mask = torch.ones_like(ids) if given is None else given.long()
    if mask.dim() != 2 or len(mask) != len(ids):
        raise ValueError(f"the attention mask has the shape {list(mask.shape)} where there are {len(ids)} prompts")
    if ids.dim() != 2 or not len(ids) or (embeds is None and (ids.shape[1] == 0 or not bool(mask.any(1).all()))):
        raise ValueError("an empty prompt cannot be continued; give at least one token in every row")
    if mask.shape[1] and not bool(mask[:, -1].all()):
        raise ValueError("the attention mask has padding on the right; pad on the left (padding_side='left')")
    if ids.numel():
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or (vocab is not None and high >= vocab):
            strange = low if low < 0 else high
            raise ValueError(f"token id {strange} is outside the model's vocabulary of {vocab}; wrong tokenizer")
    return ids, mask


def integer_ids(ids: Tensor) -> Tensor:
    """Ids of any integer type as int64, which is what is emitted, and what transformers' own steps make of them.

    Raises:
        ValueError: They are no integers.
    """
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ValueError(f"input_ids must be integers, got {ids.dtype}")
    return ids.long()


def padding(mask: Tensor) -> Tensor:
    """Padding on the left of every row: `[batch]`. Holes further in keep their place."""
    return (mask.cumsum(1) == 0).sum(1)


def for_drafting(inputs: Mapping[str, Any], model: Any, width: int, context: int | None) -> dict[str, Any]:
    """What a draft model reads of another target's call: ids and their mask, and pictures if it can see.

    Args:
        inputs: Of the call.
        model: The draft model.
        width: Of its embeddings.
        context: Most units that it can read; of a longer prompt it reads the end.

    Raises:
        ValueError: There are no ids.
    """
    ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if ids is None:
        raise ValueError("a draft model reads token ids: give input_ids, beside inputs_embeds if need be")
    foreign = {"past_key_values", "inputs_embeds", "position_ids"}
    # `generate` encodes pictures before anyone else sees the call: they can be read by a model of the same width.
    if not all(_readable(output, width) for output in (inputs.get("mm_encoder_outputs") or {}).values()):
        foreign.add("mm_encoder_outputs")
    sees = hasattr(model.config, "vision_config")
    seen = {name: value for name, value in inputs.items() if sees and name not in foreign}
    if context is not None and ids.shape[1] > context:
        seen, ids = {}, ids[:, -context:]
    # A mask over an earlier turn is longer than the ids that are new; that turn is not read.
    return {
        **seen,
        "input_ids": ids,
        "attention_mask": None if mask is None else mask[:, mask.shape[1] - ids.shape[1] :],
    }


def _readable(output: Any, width: int) -> bool:
    """Whether a picture's features are as wide as embeddings of `width`."""
    features = getattr(output, "pooler_output", None)
    parts = features if isinstance(features, list | tuple) else [features]
    return all(isinstance(part, Tensor) and part.shape[-1] == width for part in parts)
