"""MAR's KL-16 autoencoder as diffusers' `AutoencoderKL`: the same network with other names of weights.

`kl16.ckpt` has the names of latent diffusion (Rombach et al., arXiv 2112.10752): its decoder counts levels from the
picture inwards, diffusers' from the latents outwards, and its attentions are convolutions of one pixel. diffusers'
own conversion of such names has none for attention in the encoder's levels, and drops what it does not know.
"""

import re
from collections.abc import Mapping
from typing import Any

from diffusers import AutoencoderKL
from torch import Tensor

from mmspec.kits.pictures.models.official import Source, count_in, from_official, shape_in

SCALE = 0.2325
"""Tokens are latents times this number."""
LEFT_OUT = ("loss.",)
"""Words in the keys of weights that are left out: those of the discriminator."""

NAMES = (
    (r"\.down\.(\d+)\.block\.", r".down_blocks.\1.resnets."),
    (r"\.down\.(\d+)\.attn\.", r".down_blocks.\1.attentions."),
    (r"\.down\.(\d+)\.downsample\.", r".down_blocks.\1.downsamplers.0."),
    (r"\.up\.(\d+)\.block\.", r".up_blocks.\1.resnets."),
    (r"\.up\.(\d+)\.upsample\.", r".up_blocks.\1.upsamplers.0."),
    (r"\.mid\.block_1\.", ".mid_block.resnets.0."),
    (r"\.mid\.block_2\.", ".mid_block.resnets.1."),
    (r"\.mid\.attn_1\.", ".mid_block.attentions.0."),
    (r"\.nin_shortcut\.", ".conv_shortcut."),
    (r"\.norm_out\.", ".conv_norm_out."),
    (r"(attentions\.\d+)\.norm\.", r"\1.group_norm."),
    (r"(attentions\.\d+)\.([qkv])\.", r"\1.to_\2."),
    (r"(attentions\.\d+)\.proj_out\.", r"\1.to_out.0."),
)
"""Patterns of latent diffusion's names, and diffusers' names; `renamed` counts levels of `up` from the other end."""


def kl16_from_official(source: Source, **config: Any) -> AutoencoderKL:
    """The autoencoder; tokens are `latents * vae.config.scaling_factor`.

    Args:
        source: `kl16.ckpt`, or its contents. A discriminator (`loss.…`) is left out.
        **config: Arguments of `AutoencoderKL` that the shapes do not tell.

    Raises:
        ValueError: The weights do not fit.
    """

    def make(state: dict[str, Tensor]) -> AutoencoderKL:
        return AutoencoderKL(**{"scaling_factor": SCALE, **kl16_sizes(state), **config})

    return from_official(make, source, LEFT_OUT, renamed=renamed)


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights under diffusers' names.

    Raises:
        ValueError: The decoder's levels are not numbered from 0 on.
    """
    deepest = count_in(state, "decoder.up.") - 1
    weights = {}
    for key, value in state.items():
        name = re.sub(r"^(decoder\.up\.)(\d+)", lambda found: f"{found[1]}{deepest - int(found[2])}", key)
        for pattern, replacement in NAMES:
            name = re.sub(pattern, replacement, name)
        pixel = ".attentions." in name and value.shape[2:] == (1, 1)
        weights[name] = value[:, :, 0, 0] if pixel else value
    return weights


def kl16_sizes(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Arguments of `AutoencoderKL`, from the shapes of the weights.

    Raises:
        ValueError: These are no weights of such an autoencoder.
    """
    if "encoder.down.0.block.0.conv1.weight" not in state or "post_quant_conv.weight" not in state:
        raise ValueError("these are no weights of a KL autoencoder: there is no encoder.down or no post_quant_conv")
    levels = range(count_in(state, "encoder.down."))
    attending = {level for level in levels if f"encoder.down.{level}.attn.0.q.weight" in state}
    return {
        "block_out_channels": tuple(shape_in(state, f"encoder.down.{i}.block.0.conv1.weight", 4)[0] for i in levels),
        "down_block_types": tuple(f"{'Attn' * (i in attending)}DownEncoderBlock2D" for i in levels),
        "up_block_types": ("UpDecoderBlock2D",) * len(levels),
        "layers_per_block": count_in(state, "encoder.down.0.block."),
        "latent_channels": shape_in(state, "post_quant_conv.weight", 4)[0],
    }
