"""Janus and Janus-Pro as DeepSeek publishes them, as transformers' Janus.

transformers has the same layers under other names, the projections of the vision tower in three parts, and everything
in one configuration. Sizes of the vision tower and of the VQ are read from the weights: the published configuration
names them only.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import (
    GenerationConfig,
    JanusConfig,
    JanusImageProcessorPil,
    JanusProcessor,
    JanusVisionConfig,
    JanusVQVAEConfig,
    LlamaConfig,
)

from mmspec.hosts.weight_files import CONFIG
from mmspec.kits.pictures.models.official import Source, blank, count_in, from_official, renamed_by, shape_in
from mmspec_image.janus_pipeline import TEMPLATE, JanusPipeline
from mmspec_image.models.janus import JanusForImages
from mmspec_image.official.words import fast_tokenizer, published_config, read_words

UNREAD = ("vision_model.vision_tower.attn_pool.", "codebook_used")
"""Parts of keys of entries that the published code does not read: the head of the vision tower, and a count."""
TOWER, VQ = "vision_model.vision_tower.", "gen_vision_model."
HEAD_WIDTH = 64  # width of the vision tower's heads, in all published sizes
SPECIAL = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>", "pad_token": "<｜▁pad▁｜>"}
IMAGE, BEGIN, END = "<image_placeholder>", "<begin_of_image>", "<end_of_image>"
USER = "<|User|>"
FIRST_TEMPLATE = TEMPLATE.replace("<|User|>", "User").replace("<|Assistant|>", "Assistant")
"""The form of a prompt for the first Janus, whose tokenizer has no words for the roles."""


def janus_model(source: Source, config: Mapping[str, Any]) -> JanusForImages:
    """The whole model, of a published file and what its `config.json` says of the language model."""

    def make(state: dict[str, Tensor]) -> JanusForImages:
        made = JanusConfig(
            text_config=LlamaConfig(**{"tie_word_embeddings": False} | dict(config)),
            vision_config=_vision(state),
            vq_config=_vq(state),
            tie_word_embeddings=False,
        )
        return blank(JanusForImages, made)

    return from_official(make, source, UNREAD, renamed=_renamed)


def janus_config(folder: Path) -> dict[str, Any]:
    """The argument `config` of `janus_model`."""
    text = published_config(folder, "multi_modality", "janus").get("language_config")
    if not isinstance(text, dict):
        raise ValueError(f"{CONFIG} has no language_config")
    return {"config": {key: value for key, value in text.items() if key not in ("model_type", "architectures")}}


def janus_words(folders: Mapping[str, Path]) -> dict[str, Any]:
    words = read_words(folders["model"] / "tokenizer.json", (*SPECIAL.values(), BEGIN, END))
    marks = {"image_token": IMAGE, "boi_token": BEGIN, "eoi_token": END}
    tokenizer = fast_tokenizer(words, SPECIAL, extra_special_tokens=marks)
    template = TEMPLATE if USER in words.get_vocab() else FIRST_TEMPLATE
    return {"processor": JanusProcessor(JanusImageProcessorPil(), tokenizer, chat_template=template)}


def janus(model: JanusForImages, processor: JanusProcessor) -> JanusPipeline:
    words, of = processor.tokenizer.get_vocab(), model.config
    if words[BEGIN] >= of.text_config.vocab_size:
        raise ValueError(f"the tokenizer has more words than the model, which has {of.text_config.vocab_size}")
    begin, end, pad = (words[word] for word in SPECIAL.values())
    model.generation_config = GenerationConfig(
        bos_token_id=begin, eos_token_id=end, pad_token_id=pad, generation_kwargs={"boi_token_id": words[BEGIN]}
    )
    of.image_token_id = words[IMAGE]
    processor.num_image_tokens = of.vision_config.num_image_tokens
    processor.image_processor.size = {"height": of.vision_config.image_size, "width": of.vision_config.image_size}
    return JanusPipeline(model, processor)


def _vision(state: Mapping[str, Tensor]) -> JanusVisionConfig:
    width, _, patch, _ = shape_in(state, f"{TOWER}patch_embed.proj.weight", 4)
    _, patches, _ = shape_in(state, f"{TOWER}pos_embed", 3)
    return JanusVisionConfig(
        hidden_size=width,
        num_hidden_layers=count_in(state, f"{TOWER}blocks."),
        num_attention_heads=max(1, width // HEAD_WIDTH),
        mlp_ratio=shape_in(state, f"{TOWER}blocks.0.mlp.fc1.weight", 2)[0] / width,
        patch_size=patch,
        image_size=patch * round(patches**0.5),
        projection_dim=shape_in(state, "aligner.layers.0.weight", 2)[0],
        depth=_depth(state, "aligner.layers."),
        num_image_tokens=patches,
    )


def _vq(state: Mapping[str, Tensor]) -> JanusVQVAEConfig:
    channels = shape_in(state, f"{VQ}encoder.conv_in.weight", 4)[0]
    levels = range(count_in(state, f"{VQ}encoder.conv_blocks."))
    widths = [shape_in(state, f"{VQ}encoder.conv_blocks.{i}.res.0.conv1.weight", 4)[0] for i in levels]
    entries, width = shape_in(state, f"{VQ}quantize.embedding.weight", 2)
    projected = shape_in(state, "gen_head.output_mlp_projector.weight", 2)[0]
    aligned = shape_in(state, "gen_aligner.layers.0.weight", 2)[0]
    return JanusVQVAEConfig(
        embed_dim=width,
        num_embeddings=entries,
        latent_channels=shape_in(state, f"{VQ}encoder.conv_out.weight", 4)[0],
        base_channels=channels,
        channel_multiplier=[each // channels for each in widths],
        num_res_blocks=count_in(state, f"{VQ}encoder.conv_blocks.0.res."),
        projection_dim=aligned,
        image_token_embed_dim=projected,
        num_hidden_layers=_depth(state, "gen_aligner.layers."),
    )


def _depth(state: Mapping[str, Tensor], prefix: str) -> int:
    """Layers of a projector, between which are activations without weights."""
    return sum(key.startswith(prefix) and key.endswith(".weight") for key in state)


NAMES = (
    (r"^language_model\.lm_head\.", "lm_head."),
    (r"^language_model\.model\.", "model.language_model."),
    (r"^gen_embed\.", "model.generation_embeddings."),
    (r"^gen_head\.output_mlp_projector\.", "model.generation_head.proj_out."),
    (r"^gen_head\.", "model.generation_head."),
    (r"^gen_aligner\.", "model.generation_aligner."),
    (r"^aligner\.", "model.aligner."),
    (r"aligner\.layers\.0\.", "aligner.fc1."),
    (r"^vision_model\.vision_tower\.blocks\.(\d+)\.", r"model.vision_model.encoder.layers.\1."),
    (r"^vision_model\.vision_tower\.norm\.", "model.vision_model.post_layernorm."),
    (r"^vision_model\.vision_tower\.patch_embed\.proj\.", "model.vision_model.embeddings.patch_embedding."),
    (r"^(model\.vision_model\..*\.)norm(\d)\.", r"\1layer_norm\2."),
    (r"^(model\.vision_model\..*\.)attn\.proj\.", r"\1self_attn.projection_layer."),
    (r"^gen_vision_model\.", "model.vqmodel."),
    (r"encoder\.conv_blocks\.(\d+)\.res\.", r"encoder.down.\1.block."),
    (r"encoder\.conv_blocks\.", "encoder.down."),
    (r"decoder\.conv_blocks\.(\d+)\.res\.", r"decoder.up.\1.block."),
    (r"decoder\.conv_blocks\.", "decoder.up."),
    (r"coder\.mid\.0\.", "coder.mid.block_1."),
    (r"coder\.mid\.1\.", "coder.mid.attn_1."),
    (r"coder\.mid\.2\.", "coder.mid.block_2."),
)
"""Parts of published keys to those of transformers, one after another."""


def _renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for published, value in state.items():
        key = renamed_by(published, NAMES)
        if later := re.search(r"aligner\.layers\.(\d+)\.", key):  # between two layers is an activation
            key = key.replace(later[0], f"aligner.hidden_layers.{int(later[1]) // 2 - 1}.")
        if ".attn.qkv." in key:
            parts = (f"self_attn.{name}_proj" for name in "qkv")
            found |= {key.replace("attn.qkv", part): each for part, each in zip(parts, value.chunk(3), strict=True)}
        elif published == f"{TOWER}pos_embed":
            found["model.vision_model.embeddings.position_embedding.weight"] = value[0]
        else:
            found[key] = value
    return found
