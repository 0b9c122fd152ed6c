"""LlamaGen's names of VQ weights and diffusers' names of the same weights: the arithmetic is equal.

LlamaGen keeps the layout of VQGAN: blocks are called `res` and `attn`, and a projection of its attention is a
convolution over one pixel, where diffusers has a linear layer.
"""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mmspec.kits.pictures.models.official import count_in, shape_in

#: Patterns of LlamaGen's names, and what diffusers has in their place; applied in this order.
NAMES = (
    (r"^encoder\.conv_blocks\.", "encoder.down_blocks."),
    (r"^decoder\.conv_blocks\.", "decoder.up_blocks."),
    (r"\.(down|up)sample\.", r".\1samplers.0."),
    (r"\.res\.", ".resnets."),
    (r"\.attn\.", ".attentions."),
    (r"\.mid\.0\.", ".mid_block.resnets.0."),
    (r"\.mid\.1\.", ".mid_block.attentions.0."),
    (r"\.mid\.2\.", ".mid_block.resnets.1."),
    (r"\.nin_shortcut\.", ".conv_shortcut."),
    (r"\.norm_out\.", ".conv_norm_out."),
    (r"(\.attentions\.\d+)\.norm\.", r"\1.group_norm."),
    (r"(\.attentions\.\d+)\.([qkv])\.", r"\1.to_\2."),
    (r"(\.attentions\.\d+)\.proj_out\.", r"\1.to_out.0."),
)


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a published file under diffusers' names; attention projections become matrices."""
    found = {}
    for published, value in state.items():
        name = published
        for pattern, replacement in NAMES:
            name = re.sub(pattern, replacement, name)
        projects = ".attentions." in name and value.shape[2:] == (1, 1)
        found[name] = value[:, :, 0, 0] if projects else value
    return found


def vq_sizes(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Arguments of `LlamaGenVQ`, from the shapes of a published file's weights.

    Raises:
        ValueError: These are no weights of such a tokenizer.
    """
    if "quantize.embedding.weight" not in state or "encoder.conv_in.weight" not in state:
        raise ValueError("these are no weights of LlamaGen's VQ: there is no quantize.embedding or no encoder.conv_in")
    entries, width = shape_in(state, "quantize.embedding.weight", 2)
    channels = shape_in(state, "encoder.conv_in.weight", 4)[0]
    sizes: dict[str, Any] = {"codebook_size": entries, "codebook_embed_dim": width, "ch": channels}
    for half in ("encoder", "decoder"):
        levels = range(count_in(state, f"{half}.conv_blocks."))
        widths = [shape_in(state, f"{half}.conv_blocks.{i}.res.0.conv1.weight", 4)[0] for i in levels]
        outwards = widths if half == "encoder" else widths[::-1]  # a decoder's first level is the deepest
        sizes[f"{half}_ch_mult"] = tuple(size // channels for size in outwards)
    sizes["num_res_blocks"] = count_in(state, "encoder.conv_blocks.0.res.")
    return sizes | {"z_channels": shape_in(state, "quant_conv.weight", 4)[1]}
