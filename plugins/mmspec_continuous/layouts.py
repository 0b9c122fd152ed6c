"""Published files that `mmspec convert` reads: MAR, and the autoencoder of its tokens."""

from dataclasses import dataclass
from typing import Annotated

from diffusers import AutoencoderKL
from diffusers.loaders.single_file_utils import convert_ldm_vae_checkpoint
from pydantic import Field
from torch import Tensor

from mmspec.kits.pictures.layouts import Layout, Part
from mmspec.kits.pictures.models.official import Source, count_in, from_official, shape_in
from mmspec.registry.options import option
from mmspec_continuous.mar_pipeline import MARPipeline
from mmspec_continuous.models.mar import MAR

SCALE = 0.2325  # factor of the latents that MAR's tokens are


@dataclass(frozen=True)
class MARFiles:
    """Settings that MAR's weights do not tell."""

    num_heads: Annotated[int, Field(ge=1, le=1024)] | None = option(None, "attention heads of an unpublished width")


def kl16(source: Source) -> AutoencoderKL:
    """The autoencoder of latent diffusion (arXiv 2112.10752) with 16 channels, as diffusers has it."""

    def make(state: dict[str, Tensor]) -> AutoencoderKL:
        levels = range(count_in(state, "encoder.down."))
        attended = [f"encoder.down.{i}.attn.0.q.weight" in state for i in levels]
        return AutoencoderKL(
            down_block_types=tuple("AttnDownEncoderBlock2D" if each else "DownEncoderBlock2D" for each in attended),
            up_block_types=("UpDecoderBlock2D",) * len(levels),
            block_out_channels=tuple(shape_in(state, f"encoder.down.{i}.block.0.conv1.weight", 4)[0] for i in levels),
            layers_per_block=count_in(state, "encoder.down.0.block."),
            latent_channels=shape_in(state, "post_quant_conv.weight", 4)[0],
            scaling_factor=SCALE,
        )

    return from_official(make, source, ("loss.",), renamed=_renamed)


ATTENTION = {"norm": "group_norm", "q": "to_q", "k": "to_k", "v": "to_v", "proj_out": "to_out.0"}
"""Published names of attention's parts to those of diffusers."""


def _renamed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Keys of diffusers. Its own conversion leaves out the attention of levels, and whatever else it does not know."""
    levels = range(count_in(state, "encoder.down."))
    attention = {key: value for key, value in state.items() if key.startswith("encoder.down.") and ".attn." in key}
    rest = {key: value for key, value in state.items() if key not in attention}
    found = convert_ldm_vae_checkpoint(rest, {"down_block_types": levels, "up_block_types": levels})
    for key, value in attention.items():
        _, _, level, _, block, part, kind = key.split(".")
        place = f"encoder.down_blocks.{level}.attentions.{block}.{ATTENTION.get(part, part)}.{kind}"
        found[place] = value[:, :, 0, 0] if value.dim() == 4 else value
    if len(found) != len(state):
        raise ValueError(f"{len(state)} weights are there, and an autoencoder of these sizes has {len(found)}")
    return found


LAYOUTS = (
    Layout(
        name="mar",
        summary="MAR: sets of continuous tokens in random order, for classes.",
        parts=(
            Part(
                "transformer",
                MAR.from_official,
                frozenset({"fake_latent", "encoder_pos_embed_learned", "diffloss.net.cond_embed.weight"}),
                "checkpoint-last.pth",
                ("num_heads",),
            ),
            Part(
                "vae",
                kl16,
                frozenset({"post_quant_conv.weight", "quant_conv.weight", "encoder.down.4.attn.0.q.weight"}),
                "kl16.ckpt",
            ),
        ),
        pipeline=MARPipeline,
        options=MARFiles,
        source="https://github.com/LTH14/mar",
        licence="MIT, as the repository's LICENSE says",
    ),
)
