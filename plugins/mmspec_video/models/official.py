"""Published open-oasis files: entries that are not weights, and the model sizes that follow from the shapes."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mmspec.kits.pictures.models.official import count_in, shape_in

LEFT_OUT = ("rotary_emb.freqs",)
"""Parts of keys of entries that are not weights: rotary frequencies, which are computed instead."""
VAE_HEADS = {1024: 16}
"""Width of the published autoencoder to its attention heads."""
HEADS = {(1024, 16): 16}
"""Published sizes: (width, blocks) to attention heads, which no shape tells."""


def oasis_sizes(state: Mapping[str, Tensor], given: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a transformer's weights under their published keys; `given` overrides what the shapes say.

    Raises:
        ValueError: The weights are not Oasis's, or the number of heads is unknown and has to be given.
    """
    if "x_embedder.proj.weight" not in state or "blocks.0.t_attn.to_qkv.weight" not in state:
        raise ValueError("these are no weights of Oasis's transformer: there is no x_embedder or no blocks.0.t_attn")
    dim, channels, patch, _ = shape_in(state, "x_embedder.proj.weight", 4)
    depth = count_in(state, "blocks.")
    heads = given.get("num_heads", HEADS.get((dim, depth)))
    if heads is None:
        raise ValueError(f"width {dim} with {depth} blocks is no published size: say num_heads=")
    sizes = {"in_channels": channels, "patch_size": patch, "hidden_size": dim, "depth": depth, "num_heads": heads}
    return sizes | {"external_cond_dim": shape_in(state, "external_cond.weight", 2)[1]} | dict(given)


def vae_sizes(state: Mapping[str, Tensor], given: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of an autoencoder's weights under their published keys; the size of a frame is 360 × 640 unless
    `given` says otherwise.

    Raises:
        ValueError: The weights are not Oasis's, or the number of heads is unknown and has to be given.
    """
    if "patch_embed.proj.weight" not in state or "predictor.weight" not in state:
        raise ValueError("these are no weights of Oasis's autoencoder: there is no patch_embed or no predictor")
    sizes: dict[str, Any] = {"patch_size": shape_in(state, "patch_embed.proj.weight", 4)[-1]}
    sizes["latent_dim"] = shape_in(state, "post_quant_conv.weight", 2)[1]
    for short, half in (("enc", "encoder"), ("dec", "decoder")):
        width = shape_in(state, f"{short}_norm.weight", 1)[0]
        heads = given.get(f"{short}_heads", VAE_HEADS.get(width))
        if heads is None:
            raise ValueError(f"width {width} is no published size: say {short}_heads=")
        sizes |= {f"{short}_dim": width, f"{short}_heads": heads, f"{short}_depth": count_in(state, f"{half}.")}
    return sizes | dict(given)
