"""Published files that `mmspec convert` reads, and how fixtures of them run (`mmspec check --parity`)."""

from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.kits.pictures.conditions import Condition
from mmspec.kits.pictures.encoding import draws_classes
from mmspec.kits.pictures.layouts import Layout, Part
from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec_image.models.llamagen import LlamaGenTransformer
from mmspec_image.pipeline import TextToImagePipeline
from mmspec_image.sampling import AUTHORS
from mmspec_image.specs import LLAMAGEN
from mmspec_image.targets.llamagen import LlamaGenTarget


@dataclass(frozen=True)
class LlamaGenFiles:
    """What LlamaGen's weights do not tell."""

    grid: Annotated[int, Field(ge=1, le=1024)] = field(
        metadata={"help": "codes per side: 16 of the 256-pixel files, 24 of 384 pixels, 32 of 512 pixels"}
    )
    n_head: Annotated[int, Field(ge=1)] | None = field(
        default=None, metadata={"help": "query heads of an unpublished size"}
    )


def llamagen(transformer: LlamaGenTransformer, vq: LlamaGenVQ) -> TextToImagePipeline:
    usual = AUTHORS["LlamaGen, classes" if draws_classes(transformer) else "LlamaGen, captions"]
    return TextToImagePipeline(transformer, vq, guidance_scale=usual.guidance_scale, top_k=usual.top_k)


LAYOUTS = (
    Layout(
        name="llamagen",
        summary="LlamaGen: a Llama over the codes of a picture, for classes or captions.",
        parts=(
            Part(
                "transformer",
                LlamaGenTransformer.from_official,
                frozenset({"tok_embeddings.weight", "output.weight", "layers.0.attention.wqkv.weight"}),
                "such as c2i_B_256.pt or t2i_XL_stage1_256.pt",
                ("grid", "n_head"),
            ),
            Part(
                "vq",
                LlamaGenVQ.from_official,
                frozenset({"quantize.embedding.weight", "encoder.conv_blocks.0.res.0.conv1.weight"}),
                "such as vq_ds16_c2i.pt",
            ),
        ),
        pipeline=llamagen,
        options=LlamaGenFiles,
        target=LLAMAGEN.name,
        source="https://huggingface.co/FoundationVision/LlamaGen",
        licence="not known to mmspec; ask the publisher",
    ),
)


GUIDANCE = 3.0


def run_llamagen(state: dict[str, Tensor], io: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    """Teacher-forced logits, and greedy codes under guidance; with masked captions where there are masks."""
    grid = round(config["block_size"] ** 0.5)
    model = LlamaGenTransformer.from_official(state, grid=grid, n_head=config["n_head"])
    outputs = {"logits": model(io["cond"], io["idx"]), "greedy_cfg3": _greedy(model, Condition(io["cond"]))}
    if "emb_masks" in io:
        outputs["greedy_cfg3_masked"] = _greedy(model, Condition(io["cond"], io["emb_masks"].bool()))
    return outputs


def run_vq(state: dict[str, Tensor], io: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    """Codes to picture, picture to codes."""
    model = LlamaGenVQ.from_official(state, **config)
    side = io["image"].shape[-1] // model.factor
    decoded = model.decode(io["codes"].unflatten(1, (side, side)))
    return {"decoded": decoded, "image_codes": model.encode(io["image"]).codes.flatten(1)}


def _greedy(model: LlamaGenTransformer, condition: Condition) -> Tensor:
    warp = Warp(sample=False, guidance=GUIDANCE)
    return torch.stack(Decoder(LlamaGenTarget(model)).generate(condition, model.cells, warp=warp).units).int()


ARCHITECTURES = {"llamagen_c2i": run_llamagen, "llamagen_t2i": run_llamagen, "llamagen_vq": run_vq}
