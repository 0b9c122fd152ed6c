"""Published files that `mmspec convert` reads, and how fixtures of them run (`mmspec check --parity`)."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from mmspec.kits.pictures.layouts import Layout, Part
from mmspec.registry.options import option
from mmspec_video.models.oasis import OasisDiT
from mmspec_video.models.oasis_vae import OasisVAE
from mmspec_video.pipeline import NextFramePipeline
from mmspec_video.specs import FRAMES

Count = Annotated[int, Field(ge=1, le=8192)] | None


@dataclass(frozen=True)
class OasisFiles:
    """Settings that Oasis's weights do not tell; sizes are needed for unpublished ones only."""

    action_vectors: list[list[float]] | None = option(
        None, "the action space: one vector of 25 numbers an action; default: presets"
    )
    actions: list[str] | None = option(None, "names of the actions, or of presets; default: numbers, or all presets")
    num_heads: Count = option(None, "attention heads of the transformer")
    input_h: Count = option(None, "rows of latents")
    input_w: Count = option(None, "columns of latents")
    max_frames: Count = option(None, "frames of the attention window")
    input_height: Count = option(None, "height of a frame in pixels")
    input_width: Count = option(None, "width of a frame in pixels")
    enc_heads: Count = option(None, "attention heads of the encoder")
    dec_heads: Count = option(None, "attention heads of the decoder")


LAYOUTS = (
    Layout(
        name="oasis",
        summary="Oasis 500M of open-oasis: frames of a world by denoising, from actions.",
        parts=(
            Part(
                "transformer",
                OasisDiT.from_official,
                frozenset({"x_embedder.proj.weight", "external_cond.weight", "blocks.0.t_attn.to_qkv.weight"}),
                "oasis500m.safetensors",
                ("num_heads", "input_h", "input_w", "max_frames"),
            ),
            Part(
                "vae",
                OasisVAE.from_official,
                frozenset({"patch_embed.proj.weight", "predictor.weight", "post_quant_conv.weight"}),
                "vit-l-20.safetensors",
                ("input_height", "input_width", "enc_heads", "dec_heads"),
            ),
        ),
        pipeline=NextFramePipeline,
        options=OasisFiles,
        settings=("action_vectors", "actions"),
        target=FRAMES.name,
        source="https://github.com/etched-ai/open-oasis",
        licence="not known to mmspec; ask the publisher",
    ),
)


def run_dit(state: dict[str, Tensor], io: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    """v of all frames in one pass."""
    return {"v": OasisDiT.from_official(state, **config)(io["x"], io["t"], io["actions"])}


def run_vae(state: dict[str, Tensor], io: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    """Latents to picture, picture to latents."""
    model = OasisVAE.from_official(state, **config)
    return {"decoded": model.decode(io["z"]), "posterior_mean": model.posterior_mean(io["image"])}


ARCHITECTURES = {"oasis_dit": run_dit, "oasis_vae": run_vae}
