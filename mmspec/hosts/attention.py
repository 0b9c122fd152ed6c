"""Attention for tree passes: query groups packed into the query axis, so that keys are never repeated.

Registered with transformers as `mmspec` and switched on for the length of a pass. An argument that it does not know is
refused: an ignored soft-cap or sink would be silently wrong.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

NAME = "mmspec"
_IGNORED = frozenset({"position_ids", "use_cache", "output_attentions", "output_hidden_states", "cache_position"})


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention under an explicit mask.

    Args:
        module: The attention layer; not read.
        query: `[batch, heads, node, width]`.
        key: `[batch, key heads, slot, width]`; heads of one group are neighbours.
        value: Like `key`.
        attention_mask: `[batch, 1, node, slot]` bool.
        dropout: Must be 0.
        scaling: Factor of the scores.
        **kwargs: What the mask already says is ignored; anything else is refused.

    Returns:
        `[batch, node, heads, width]` and no weights.

    Raises:
        ValueError: An argument that would change the result is not supported.
    """
    unknown = {name for name, given in kwargs.items() if given is not None and given is not False} - _IGNORED
    if unknown or dropout or attention_mask is None:
        raise ValueError(
            f"tree attention of {type(module).__name__} cannot honour {sorted(unknown) or 'dropout or a missing mask'}"
        )
    batch, heads, nodes, width = query.shape
    group = heads // key.shape[1]
    # Plain reshapes: in every layer of every pass, parsing a pattern would cost as much as the attention itself.
    packed = query.reshape(batch, key.shape[1], group * nodes, width)
    mask = _repeated(attention_mask, group)
    out = F.scaled_dot_product_attention(packed, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(batch, heads, nodes, -1).transpose(1, 2).contiguous(), None


@lru_cache(maxsize=2)
def _repeated(mask: Tensor, group: int) -> Tensor:
    """The mask for every query of a group; all layers of a pass share one mask, so it is made once."""
    return mask.repeat(1, 1, group, 1)


AttentionInterface.register(NAME, packed_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextmanager
def tree_attention(model: PreTrainedModel) -> Iterator[None]:
    """Let `model` attend through `packed_attention` inside the block."""
    config = model.config
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before
