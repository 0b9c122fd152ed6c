"""VQGANs of taming-transformers' kind, plain (Chameleon, IBQ) and with spatial norms (MoVQ), as diffusers' `VQModel`.

Their keys number the decoder's levels from the finest one on, where diffusers begins with the coarsest, and attention
is made of convolutions over one pixel, where diffusers has matrices.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import VQModel
from torch import Tensor

from mmspec.hosts.loading import fetched, load_part, locate
from mmspec.hosts.weight_files import key_files, read_tensors
from mmspec.kits.pictures.models.official import Source, count_in, from_official, renamed_by, shape_in

VQ = "model.vqmodel."  # the beginning of a VQ's keys where it is stored with a language model of transformers
LEFT_OUT = ("loss.", "ema_")  # parts of keys of entries that only training reads
NAMES = (
    (r"\.(down|up)\.(\d+)\.(block|attn)\.", r".\1_blocks.\2.\3."),
    (r"\.(down|up)\.(\d+)\.(down|up)sample\.", r".\1_blocks.\2.\3samplers.0."),
    (r"\.mid\.block_1\.", ".mid_block.resnets.0."),
    (r"\.mid\.block_2\.", ".mid_block.resnets.1."),
    (r"\.mid\.attn_1\.", ".mid_block.attentions.0."),
    (r"\.block\.", ".resnets."),
    (r"\.attn\.", ".attentions."),
    (r"\.nin_shortcut\.", ".conv_shortcut."),
    (r"coder\.norm_out\.", "coder.conv_norm_out."),
    (r"(attentions\.\d+)\.([qkv])\.", r"\1.to_\2."),
    (r"(attentions\.\d+)\.proj_out\.", r"\1.to_out.0."),
    (r"(attentions\.\d+)\.norm\.(weight|bias)", r"\1.group_norm.\2"),
    (r"(attentions\.\d+)\.norm\.", r"\1.spatial_norm."),
)
"""Parts of published keys to those of diffusers, one after another."""


def vq_model(source: Source) -> VQModel:
    """The autoencoder of a published file, whose sizes are read from its weights."""
    return from_official(vq_of, source, LEFT_OUT, renamed=vq_renamed)


def vq_at(given: Any, dtype: torch.dtype) -> VQModel:
    """The autoencoder that a user gives: a live one, or the folder of one."""
    if isinstance(given, VQModel):
        return given
    if not Path(given).is_dir():
        raise ValueError(f"there is no folder {str(given)!r}; vq= is diffusers' VQModel, or a folder of one")
    return load_part(VQModel, Path(given), dtype)


def vq_inside(name: str, dtype: torch.dtype) -> VQModel | None:
    """The autoencoder among the weights of a language model, by name; None: they have no decoder."""
    files = {key: file for key, file in key_files(fetched(locate(name))).items() if key.startswith(VQ)}
    if not any(key.startswith(f"{VQ}decoder.") for key in files):
        return None
    read = [read_tensors(file, files) for file in sorted(set(files.values()))]
    state = {key.removeprefix(VQ): value for tensors in read for key, value in tensors.items()}
    try:
        return vq_model(state).to(dtype)
    except ValueError as error:
        raise ValueError(f"the autoencoder inside of {name}: {error}") from error


def vq_of(state: Mapping[str, Tensor]) -> VQModel:
    """An autoencoder of the sizes of a published state, without numbers."""
    levels = range(count_in(state, "encoder.down."))
    entries, width = shape_in(state, "quantize.embedding.weight", 2)
    attends = ["Attn" * (f"encoder.down.{level}.attn.0.q.weight" in state) for level in levels]
    with torch.device("meta"):
        return VQModel(
            down_block_types=tuple(f"{attn}DownEncoderBlock2D" for attn in attends),
            up_block_types=tuple(f"{attn}UpDecoderBlock2D" for attn in reversed(attends)),
            block_out_channels=tuple(shape_in(state, f"encoder.down.{i}.block.0.conv1.weight", 4)[0] for i in levels),
            layers_per_block=count_in(state, "encoder.down.0.block."),
            latent_channels=shape_in(state, "encoder.conv_out.weight", 4)[0],
            vq_embed_dim=width,
            num_vq_embeddings=entries,
            norm_type="spatial" if "decoder.norm_out.conv_y.weight" in state else "group",
            lookup_from_codebook=True,
        )


def vq_renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """From published keys to those of diffusers; unknown keys stay."""
    found, levels = {}, count_in(state, "decoder.up.")
    for key, value in state.items():
        key = renamed_by(key, NAMES)
        if ".attentions." in key and value.dim() == 4 and "norm" not in key:
            value = value[:, :, 0, 0]
        key = re.sub(r"up_blocks\.(\d+)", lambda level: f"up_blocks.{levels - 1 - int(level[1])}", key)
        found[key] = value.contiguous()
    return found
