"""A VQ tokenizer's weights under LlamaGen's published names: what a published file would hold."""

import re
from collections.abc import Mapping

from torch import Tensor

NAMES = (
    (r"^(en|de)coder\.(down|up)_blocks\.", r"\1coder.conv_blocks."),
    (r"\.(down|up)samplers\.0\.", r".\1sample."),
    (r"\.mid_block\.resnets\.0\.", ".mid.0."),
    (r"\.mid_block\.attentions\.0\.", ".mid.1."),
    (r"\.mid_block\.resnets\.1\.", ".mid.2."),
    (r"\.resnets\.", ".res."),
    (r"\.attentions\.", ".attn."),
    (r"\.conv_shortcut\.", ".nin_shortcut."),
    (r"\.conv_norm_out\.", ".norm_out."),
    (r"\.group_norm\.", ".norm."),
    (r"\.to_([qkv])\.", r".\1."),
    (r"\.to_out\.0\.", ".proj_out."),
)


def published(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Projections of attention are convolutions over one pixel there."""
    found = {}
    for key, value in state.items():
        projects = re.search(r"\.to_(q|k|v|out\.0)\.weight$", key)
        for ours, theirs in NAMES:
            key = re.sub(ours, theirs, key)
        found[key] = value[..., None, None].clone() if projects else value
    return found
