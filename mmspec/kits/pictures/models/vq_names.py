"""LlamaGen's names of VQ weights and diffusers' names of the same weights: the arithmetic is equal.

LlamaGen keeps the layout of VQGAN: blocks are called `res` and `attn`, and a projection of its attention is a
convolution over one pixel, where diffusers has a linear layer.
"""

import re
from collections.abc import Mapping

from torch import Tensor

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
