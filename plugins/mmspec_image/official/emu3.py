"""Emu3-Gen and its VisionTokenizer as BAAI publishes them, as one model of transformers.

The language model has a Llama's keys; the VisionTokenizer has other names in transformers, and attention by matrices
where convolutions over one pixel are published. The tokenizer is a file of ranks as tiktoken reads it, and one of
control words, whose ids follow the ranks.
"""

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, normalizers
from torch import Tensor
from transformers import (
    Emu3Config,
    Emu3ForCausalLM,
    Emu3ForConditionalGeneration,
    Emu3ImageProcessor,
    Emu3Processor,
    Emu3TextConfig,
    Emu3VQVAE,
    Emu3VQVAEConfig,
    GenerationConfig,
    PreTrainedTokenizerFast,
)
from transformers.convert_slow_tokenizer import TikTokenConverter

from mmspec.kits.pictures.models.official import Source, blank, from_official, renamed_by
from mmspec.registry.printable import shown
from mmspec_image.emu3_pipeline import AREA, Emu3Pipeline
from mmspec_image.official.words import published_config, refuse_lacking

EXTRA = [f"<|extra_{number}|>" for number in range(205)]
FIRST = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *EXTRA]  # control words in front of those of the second file
SPECIAL = {"pad_token": FIRST[0], "bos_token": EXTRA[203], "eos_token": EXTRA[204]}
MARKS = {
    "image_token": EXTRA[0], "boi_token": "<|image start|>", "eoi_token": "<|image end|>",
    "image_wrapper_token": "<|image token|>", "eof_token": EXTRA[201],
}  # fmt: skip
"""Control words by transformers' names; the first, for a picture to be read, is one that Emu3 does not use."""
TRANSFORMERS_OWN = {"model_type", "architectures", "transformers_version", "rope_parameters"}
"""Entries of a configuration that are not taken from the published one."""
SIZES = {
    "codebook_size": "codebook_size", "embed_dim": "embed_dim", "z_channels": "latent_channels", "ch": "base_channels",
    "double_z": "double_latent", "in_channels": "in_channels", "out_channels": "out_channels",
    "ch_mult": "channel_multiplier", "num_res_blocks": "num_res_blocks", "attn_resolutions": "attn_resolutions",
    "temporal_downsample_factor": "temporal_downsample_factor",
}  # fmt: skip
"""Published names of the VisionTokenizer's sizes to those of transformers."""


def emu3_model(source: Source, config: Mapping[str, Any]) -> Emu3ForCausalLM:
    """The language model alone, without numbers of its own where the source has none."""
    known = Emu3TextConfig().to_dict().keys() - TRANSFORMERS_OWN
    rope = {"rope_type": "default", "rope_theta": float(config.get("rope_theta", 1e6))}
    sizes = {key: value for key, value in config.items() if key in known}
    return from_official(lambda _: blank(Emu3ForCausalLM, Emu3TextConfig(**sizes, rope_parameters=rope)), source)


def emu3_vq(source: Source, config: Mapping[str, Any]) -> Emu3VQVAE:
    """The VisionTokenizer."""
    sizes = {name: config[published] for published, name in SIZES.items() if published in config}
    made = Emu3VQVAEConfig(**sizes)
    made.hidden_size = made.base_channels * made.channel_multiplier[-1]  # of its attention
    return from_official(lambda _: blank(Emu3VQVAE, made), source, ("num_batches_tracked",), renamed=_renamed)


def emu3_config(folder: Path) -> dict[str, Any]:
    """The argument `config` of `emu3_model`."""
    return {"config": published_config(folder, "Emu3", "emu3")}


def emu3_vq_config(folder: Path) -> dict[str, Any]:
    """The argument `config` of `emu3_vq`."""
    return {"config": published_config(folder, "Emu3VisionVQ", "emu3")}


def emu3_words(folders: Mapping[str, Path]) -> dict[str, Any]:
    """The arguments `processor` and `image_area` of `emu3`."""
    words = emu3_tokenizer(folders["model"])
    area = emu3_config(folders["model"])["config"].get("image_area", AREA)
    return {"processor": Emu3Processor(Emu3ImageProcessor(), words), "image_area": area}


def emu3(model: Emu3ForCausalLM, vq: Emu3VQVAE, processor: Emu3Processor, image_area: int) -> Emu3Pipeline:
    """The pipeline, of both parts as one model."""
    words = processor.tokenizer.get_vocab()
    if max(words.values()) >= model.config.vocab_size:
        raise ValueError(f"the tokenizer has more words than the model, which has {model.config.vocab_size}")
    codes = sum(word.startswith("<|visual token") for word in words)
    if codes != vq.config.codebook_size:
        raise ValueError(f"the tokenizer has words for {codes} codes, and the VQ has {vq.config.codebook_size}")
    names = {word: number for word, number in words.items() if word.startswith("<|")}
    config = Emu3Config(
        text_config=model.config.to_dict(),
        vq_config=vq.config.to_dict(),
        vocabulary_map=names | {"<image>": words[MARKS["image_token"]]},
    )
    whole = blank(Emu3ForConditionalGeneration, config)
    whole.model.text_model, whole.model.vqmodel, whole.lm_head = model.model, vq, model.lm_head
    pad, begin, end = (words[word] for word in SPECIAL.values())
    whole.generation_config = GenerationConfig(pad_token_id=pad, bos_token_id=begin, eos_token_id=end)
    return Emu3Pipeline(whole.eval(), processor, image_area)


def emu3_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """transformers' tokenizer of `emu3.tiktoken` and `emu3_vision_tokens.txt`. It puts nothing before a text."""
    ranks, control = folder / "emu3.tiktoken", folder / "emu3_vision_tokens.txt"
    try:
        lines = [line.split() for line in ranks.read_bytes().splitlines() if line]
        known = {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
        named = [line.strip() for line in control.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise ValueError(f"the tokenizer of Emu3 cannot be read: {shown(error)}") from error
    if sorted(known.values()) != list(range(len(known))):
        raise ValueError(f"the ranks in {shown(ranks)} are not 0, 1, …, each of them once")
    special = FIRST + named
    refuse_lacking(control, dict.fromkeys(special, 0), [*MARKS.values(), "<|visual token 000000|>"])
    converter = TikTokenConverter(extra_special_tokens=special)
    converter.pattern = converter.pattern.replace(r"\p{N}{1,3}", r"\p{N}")  # numbers are read digit by digit
    converter.load_tiktoken_bpe = lambda _: known  # the library's needs the package tiktoken
    words: Tokenizer = converter.converted()
    words.normalizer = normalizers.NFC()
    return PreTrainedTokenizerFast(tokenizer_object=words, **SPECIAL, extra_special_tokens=MARKS)


NAMES = (
    (r"^encoder\.down\.", "encoder.down_block.down."),
    (r"^decoder\.up\.", "decoder.up_block.up."),
    (r"coder\.mid\.attn_1\.norm\.", "coder.middle_block.attn_norm."),
    (r"coder\.mid\.", "coder.middle_block."),
    (r"\.attn\.(\d+)\.norm\.", r".attn_norms.\1."),
    (r"(\.attn[._]\d+)\.([qkv])\.", r"\1.\2_proj."),
    (r"(\.attn[._]\d+)\.proj_out\.", r"\1.out_proj."),
)
"""Parts of published keys of the VisionTokenizer to those of transformers, one after another."""


def _renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for published, value in state.items():
        key = renamed_by(published, NAMES)
        pixel = re.search(r"\.attn[._]\d+\.\w+_proj\.weight$", key) and value.dim() == 4
        found[key] = value[:, :, 0, 0] if pixel else value
        if key.endswith("running_mean"):  # a counter of training steps, which transformers asks for, too
            found[key.replace("running_mean", "num_batches_tracked")] = torch.zeros((), dtype=torch.int64)
    return found
