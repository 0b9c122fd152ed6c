"""Published files that `mmspec convert` reads, and how fixtures of them run (`mmspec check --parity`)."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.kits.pictures.conditions import Condition, draws_classes
from mmspec.kits.pictures.layouts import Layout, Part
from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec.registry.options import option
from mmspec_image.models.llamagen import LlamaGenTransformer
from mmspec_image.official import chameleon, emu3, grid_language, janus
from mmspec_image.official.vq import VQ, vq_model
from mmspec_image.pipeline import TextToImagePipeline
from mmspec_image.sampling import AUTHORS
from mmspec_image.specs import CHAMELEON, EMU3, GRID_LANGUAGE, JANUS, LLAMAGEN
from mmspec_image.targets.llamagen import LlamaGenTarget


@dataclass(frozen=True)
class LlamaGenFiles:
    """Settings that LlamaGen's weights do not tell."""

    grid: Annotated[int, Field(ge=1, le=1024)] = field(
        metadata={"help": "codes per side: 16 of the 256-pixel files, 24 of 384 pixels, 32 of 512 pixels"}
    )
    n_head: Annotated[int, Field(ge=1)] | None = option(None, "query heads of an unpublished size")


def llamagen(transformer: LlamaGenTransformer, vq: LlamaGenVQ) -> TextToImagePipeline:
    usual = AUTHORS["LlamaGen, classes" if draws_classes(transformer) else "LlamaGen, captions"]
    return TextToImagePipeline(transformer, vq, guidance_scale=usual.guidance_scale, top_k=usual.top_k)


@dataclass(frozen=True)
class LuminaFiles:
    """Settings that Lumina-mGPT's weights do not tell."""

    size: Annotated[int, Field(ge=32, le=8192)] = field(
        metadata={"help": "pixels per side it was trained to draw, as its name says: 512, 768 or 1024"}
    )


VQGAN = Part(
    "vq",
    chameleon.vqgan,
    frozenset({"quantize.embedding.weight", "post_quant_conv.weight", "encoder.down.0.block.0.conv1.weight"}),
    "Chameleon's folder tokenizer, with vqgan.ckpt and text_tokenizer.json",
)


def grid_layout(name: str, summary: str, marks: frozenset[str], source: str, licence: str, *parts: Part) -> Layout:
    """Of a model of `mmspec_image.models.grid_language`."""
    model = Part(
        "model",
        grid_language.grid_model(name),
        frozenset({"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight"}) | marks,
        f"the folder of {source.rpartition('/')[2]}, with config.json and its tokenizer",
        beside=grid_language.grid_config(name),
        without=VQ,
    )
    return Layout(
        name=name,
        summary=summary,
        parts=(model, *parts),
        pipeline=partial(grid_language.grid_pipeline, name),
        beside=grid_language.grid_words(name),
        target=GRID_LANGUAGE.name,
        source=source,
        licence=licence,
    )


LUMINA_MARKS = (
    frozenset({"model.embed_tokens.weight", "model.layers.0.self_attn.q_norm.bias", "lm_head.weight"})
    | {f"model.layers.0.self_attn.{name}_proj.weight" for name in "qkvo"}
)  # fmt: skip
LAYOUTS = (
    Layout(
        name="lumina",
        summary="Lumina-mGPT: a Chameleon that draws pictures of many sizes.",
        parts=(
            Part(
                "model",
                chameleon.lumina_model,
                LUMINA_MARKS,
                "the folder Lumina-mGPT-7B-768, with config.json and tokenizer.json",
                beside=chameleon.lumina_config,
                without=VQ,
            ),
            VQGAN,
        ),
        pipeline=chameleon.lumina,
        options=LuminaFiles,
        settings=("size",),
        beside=chameleon.lumina_words,
        target=CHAMELEON.name,
        source="https://huggingface.co/Alpha-VLLM/Lumina-mGPT-7B-768",
        licence="not known to mmspec; ask the publisher",
    ),
    Layout(
        name="anole",
        summary="Anole: a Chameleon that draws pictures.",
        parts=(
            Part(
                "model",
                chameleon.anole_model,
                frozenset({"tok_embeddings.weight", "output.weight", "layers.0.attention.q_normalization.weight"})
                | {"layers.0.attention.wq.weight"},
                "the folder models/7b, with consolidated.pth and params.json",
                beside=chameleon.anole_params,
            ),
            VQGAN,
        ),
        pipeline=chameleon.anole,
        beside=chameleon.anole_words,
        target=CHAMELEON.name,
        source="https://huggingface.co/GAIR/Anole-7b-v0.1",
        licence="Chameleon's licence, for research only, as the repository's README says",
    ),
    Layout(
        name="janus",
        summary="Janus and Janus-Pro: language models that read and draw pictures.",
        parts=(
            Part(
                "model",
                janus.janus_model,
                frozenset({"language_model.model.embed_tokens.weight", "gen_vision_model.quantize.embedding.weight"})
                | {"gen_head.vision_head.weight", "gen_aligner.layers.0.weight", "gen_embed.weight"},
                "the folder Janus-Pro-1B, with config.json and tokenizer.json",
                beside=janus.janus_config,
            ),
        ),
        pipeline=janus.janus,
        beside=janus.janus_words,
        target=JANUS.name,
        source="https://huggingface.co/deepseek-ai/Janus-Pro-1B",
        licence="DeepSeek's model licence, as the repository's README says",
    ),
    Layout(
        name="emu3",
        summary="Emu3-Gen: a language model that draws pictures, and its VisionTokenizer.",
        parts=(
            Part(
                "model",
                emu3.emu3_model,
                frozenset({"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "lm_head.weight"}),
                "the folder Emu3-Gen, with config.json, emu3.tiktoken and emu3_vision_tokens.txt",
                beside=emu3.emu3_config,
            ),
            Part(
                "vq",
                emu3.emu3_vq,
                frozenset({"quantize.embedding.weight", "post_quant_conv.conv.weight"})
                | {"encoder.down.0.block.0.conv1.weight", "encoder.time_conv.0.conv.conv.weight"},
                "the folder Emu3-VisionTokenizer, with config.json",
                beside=emu3.emu3_vq_config,
            ),
        ),
        pipeline=emu3.emu3,
        beside=emu3.emu3_words,
        target=EMU3.name,
        source="https://huggingface.co/BAAI/Emu3-Gen",
        licence="Apache 2.0, as the repository's LICENSE says",
    ),
    grid_layout(
        "liquid",
        "Liquid: a Gemma that draws pictures with the codes of Chameleon's VQ.",
        frozenset({"model.layers.0.input_layernorm.weight"}),
        "https://huggingface.co/Junfeng5/Liquid_V1_7B",
        "MIT, as the repository's README says",
        replace(VQGAN, load=vq_model),
    ),
    grid_layout(
        "simplear",
        "SimpleAR: a Qwen2 that draws codes of a Cosmos tokenizer.",
        frozenset({"model.layers.0.self_attn.q_proj.bias"}),
        "https://github.com/wdrink/SimpleAR",
        "not known to mmspec; ask the publisher",
    ),
    grid_layout(
        "emu3.5",
        "Emu3.5: a Qwen3 by its layers, which draws codes of an IBQ tokenizer.",
        frozenset({"model.layers.0.self_attn.q_norm.weight", "lm_head.weight"}),
        "https://huggingface.co/BAAI/Emu3.5-Image",
        "Apache 2.0, as the repository's LICENSE says",
        replace(VQGAN, load=vq_model, holds="model.ckpt of Emu3.5-VisionTokenizer"),
    ),
    grid_layout(
        "lumina2",
        "Lumina-mGPT 2.0: a Chameleon that draws codes of a MoVQGAN.",
        LUMINA_MARKS,
        "https://huggingface.co/Alpha-VLLM/Lumina-mGPT-2.0",
        "not known to mmspec; ask the publisher",
        Part(
            "vq", vq_model, VQGAN.marks | {"decoder.norm_out.conv_y.weight"}, "movqgan_270M.ckpt of ai-forever/MoVQGAN"
        ),
    ),
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
