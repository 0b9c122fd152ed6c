"""Attention of captured passes on CUDA, through torch's FlexAttention: it reads live slots only, and makes no mask.

`mmspec.hosts.attention.packed_attention` needs a mask with an entry for every node and slot of every row, and reads
all slots that are allocated. The kernel that torch's compiler makes of this function reads the blocks that
`mmspec.hosts.block_masks` names, and evaluates the mask inside. Without the compiler FlexAttention computes all scores
at once, so that eager passes go on with the packed function.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention
from transformers import AttentionInterface

from mmspec.core import kernels
from mmspec.hosts.attention import packed_sinks, refuse_unknown
from mmspec.hosts.block_masks import FLEX, packed
from mmspec.hosts.passes import Passes
from mmspec.hosts.slot_cache import SlotCache

LEAST_WIDTH = 16
"""The least width of a head that the kernel takes."""


def fits(passes: Passes, slots: SlotCache) -> bool:
    """Whether compiled passes of a model over a cache can attend through FlexAttention."""
    device = slots.length.device
    states = [each for layer in slots.owning for each in (layer.keys, layer.values)]
    return (
        device.type == "cuda"
        and kernels.available(device)
        and passes.manner == "interface"
        and bool(passes.model_info.model._supports_flex_attn)
        and bool(states)
        and all(_takes(each, device) for each in states)
    )


def _takes(states: Tensor, device: torch.device) -> bool:
    half_or_single = states.dtype in (torch.float16, torch.bfloat16, torch.float32)
    return half_or_single and states.device == device and states.shape[-1] >= LEAST_WIDTH


def block_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: BlockMask,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """`packed_attention`, whose arguments it shares, under a mask that is evaluated inside (`tree_blocks`).

    Raises:
        ValueError: An argument that would change the result is not supported, or the model made something else of the
            mask.
    """
    refuse_unknown(module, kwargs, bool(dropout) or not isinstance(attention_mask, BlockMask))
    batch, heads, nodes, width = query.shape
    group = heads // key.shape[1]

    def capped(score: Tensor, *indices: Tensor) -> Tensor:
        assert softcap is not None
        return softcap * torch.tanh(score / softcap)

    out: Any = flex_attention(
        query.reshape(batch, key.shape[1], group * nodes, width),
        key,
        value,
        score_mod=None if softcap is None else capped,
        block_mask=packed(attention_mask, group),
        scale=scaling,
        return_aux=None if s_aux is None else AuxRequest(lse=True),
    )
    if s_aux is not None:
        out, aux = out
        # A sink takes exp(sink) of the mass exp(sink) + exp(lse), and has no value.
        out = out * torch.sigmoid(aux.lse[..., None] - packed_sinks(s_aux, key.shape[1], nodes))
    return out.reshape(batch, heads, nodes, -1).transpose(1, 2).contiguous().to(query.dtype), None


AttentionInterface.register(FLEX, block_attention)
