"""The Chameleon family as its authors publish it: Lumina-mGPT, Anole, and the VQGAN that both read with.

Lumina-mGPT is stored as transformers stored Chameleon in 2024: the norms of queries and keys have one row for the heads
of a device, where transformers has one a head now, and its training deleted the VQ. Anole is stored as Chameleon's own
release: rotary pairs lie beside each other, where transformers splits a head into halves. The VQGAN is a file of its
own, of taming-transformers, with the decoder that transformers' Chameleon lacks.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import VQModel
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import (
    ChameleonConfig,
    ChameleonImageProcessorPil,
    ChameleonProcessor,
    ChameleonVQVAE,
    ChameleonVQVAEConfig,
)

from mmspec.kits.pictures.models.official import Source, blank, count_in, from_official, shape_in
from mmspec.untrusted import read_json
from mmspec_image.chameleon_pipeline import ChameleonPipeline
from mmspec_image.constraint import LUMINA_ROW_END, lumina_size
from mmspec_image.models.chameleon import ChameleonForImages
from mmspec_image.official.vq import VQ, vq_of, vq_renamed
from mmspec_image.official.words import fast_tokenizer, published_config, read_words, refuse_lacking

TRAINING = ("loss.", "rope.freqs")  # parts of keys of entries that only training reads, and of a table that is computed
TURN, IMAGE, IMAGE_BEFORE = "<reserved08706>", "<image>", "<reserved08707>"
"""The word behind a user's turn; and the word for a picture, which has another name in Chameleon's own release."""
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "sep_token": TURN}
VOCAB = 65536  # words of Chameleon's tokenizer; Lumina-mGPT 2.0 has another one, and more
ANOLE_CELLS = 32  # rows and columns of codes of every picture of Chameleon and Anole


class PublishedVQGAN(nn.Module):
    """The VQGAN twice: as transformers' Chameleon reads pictures, and with its decoder, as diffusers has it."""

    def __init__(self, reader: ChameleonVQVAE, vq: VQModel) -> None:
        super().__init__()
        self.reader, self.vq = reader, vq


def vqgan(source: Source) -> PublishedVQGAN:
    """The VQGAN of a published file, whose sizes are read from its weights."""
    return from_official(_vqgan_of, source, TRAINING, renamed=_both)


def lumina_model(source: Source, config: Mapping[str, Any]) -> ChameleonForImages:
    """The language model of Lumina-mGPT. Weights of a VQ beside it are left to the VQ's own file, which has its decoder
    too.
    """
    made = ChameleonConfig.from_dict(dict(config))
    left_out = (*TRAINING, VQ)
    return from_official(
        lambda _: _without_vq(made), source, left_out, renamed=lambda state: heads_expanded(state, made)
    )


def heads_expanded(state: Mapping[str, Tensor], config: ChameleonConfig) -> dict[str, Tensor]:
    """The same weights, with norms of queries and keys that have a row a head."""
    heads = {"q_norm": config.num_attention_heads, "k_norm": config.num_key_value_heads}
    return {key: _expanded(value, heads.get(key.split(".")[-2], 0)) for key, value in state.items()}


def anole_model(source: Source, params: Mapping[str, Any]) -> ChameleonForImages:
    """The language model of Anole, as Chameleon's own release stores it."""
    heads = int(params["n_heads"])
    kv_heads = int(params.get("n_kv_heads") or heads)

    def make(state: dict[str, Tensor]) -> ChameleonForImages:
        vocab, width = shape_in(state, "tok_embeddings.weight", 2)
        made = ChameleonConfig(
            vocab_size=vocab,
            hidden_size=width,
            intermediate_size=shape_in(state, "layers.0.feed_forward.w1.weight", 2)[0],
            num_hidden_layers=count_in(state, "layers."),
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            rms_norm_eps=float(params.get("norm_eps", 1e-5)),
            rope_parameters={"rope_type": "default", "rope_theta": float(params.get("rope_theta", 1e4))},
            swin_norm=bool(params.get("swin_norm", False)),
            vocabulary_map={},
        )
        return _without_vq(made)

    return from_official(make, source, TRAINING, renamed=lambda state: _from_anole(state, heads, kv_heads))


def lumina_config(folder: Path) -> dict[str, Any]:
    """The argument `config` of `lumina_model`."""
    config = published_config(folder, "chameleon", "lumina")
    if int(config.get("vocab_size", 0)) > VOCAB:
        raise ValueError("these are weights of Lumina-mGPT 2.0: mmspec convert lumina2")
    return {"config": config}


def anole_params(folder: Path) -> dict[str, Any]:
    """The argument `params` of `anole_model`."""
    said = read_json(folder / "params.json")
    params = said | (said["model"] if isinstance(said.get("model"), dict) else {})
    if not isinstance(params.get("n_heads"), int):
        raise ValueError("params.json does not say n_heads")
    return {"params": params}


def lumina_words(folders: Mapping[str, Path]) -> dict[str, Any]:
    return {"processor": _processor(folders["model"] / "tokenizer.json", [LUMINA_ROW_END, lumina_size(2)])}


def anole_words(folders: Mapping[str, Path]) -> dict[str, Any]:
    return {"processor": _processor(folders["vq"] / "text_tokenizer.json", [])}


def lumina(
    model: ChameleonForImages, vq: PublishedVQGAN, processor: ChameleonProcessor, size: int
) -> ChameleonPipeline:
    """The pipeline, whose pictures have `size` pixels per side where a call does not say."""
    factor = 2 ** (len(vq.reader.config.channel_multiplier) - 1)
    if size % (2 * factor):
        raise ValueError(f"pictures of Lumina-mGPT have multiples of {2 * factor} pixels per side, and not {size}")
    size_word = lumina_size(size // factor)
    if size_word not in processor.tokenizer.get_vocab():
        raise ValueError(f"the tokenizer has no {size_word}, which asks for {size} pixels")
    return _pipeline(model, vq, processor, size, sized=True)


def anole(model: ChameleonForImages, vq: PublishedVQGAN, processor: ChameleonProcessor) -> ChameleonPipeline:
    factor = 2 ** (len(vq.reader.config.channel_multiplier) - 1)
    return _pipeline(model, vq, processor, ANOLE_CELLS * factor, sized=False)


def _pipeline(
    model: ChameleonForImages, vq: PublishedVQGAN, processor: ChameleonProcessor, resolution: int, sized: bool
) -> ChameleonPipeline:
    words, entries = processor.tokenizer.get_vocab(), vq.reader.config.num_embeddings
    codes = [number for word, number in words.items() if word.startswith("IMGIMG")]
    if len(codes) != entries:
        raise ValueError(f"the tokenizer has words for {len(codes)} codes, and the VQ has {entries}")
    if max(codes) >= model.config.vocab_size:  # other words may lie behind: Lumina-mGPT's has one for a given picture
        raise ValueError(f"the tokenizer has more codes than the model, which has {model.config.vocab_size} ids")
    vq.reader.config.resolution = resolution
    model.config.vocabulary_map, model.config.vq_config = words, vq.reader.config
    model.model.vqmodel = vq.reader
    return ChameleonPipeline(model, processor, vq.vq, sized=sized)


def _without_vq(config: ChameleonConfig) -> ChameleonForImages:
    """The language model alone, without numbers."""
    model = blank(ChameleonForImages, config)
    model.model.vqmodel = nn.Identity()
    return model


def _expanded(norm: Tensor, heads: int) -> Tensor:
    """A norm with a row a head `[heads, width]`, of one with a row for the heads of a device; others, as they are."""
    if not heads or norm.dim() != 2 or heads % len(norm):
        return norm
    return norm.repeat_interleave(heads // len(norm), 0)


NAMES = {
    "tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head",
    "attention.wq": "self_attn.q_proj", "attention.wk": "self_attn.k_proj", "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "attention.q_normalization": "self_attn.q_norm", "attention.k_normalization": "self_attn.k_norm",
    "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj", "feed_forward.w3": "mlp.up_proj",
    "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}  # fmt: skip
"""Modules of Chameleon's own release to transformers', without the number of their layer."""


def _from_anole(state: Mapping[str, Tensor], heads: int, kv_heads: int) -> dict[str, Tensor]:
    """From keys of Chameleon's own release to those of transformers; unknown keys stay."""
    found = {}
    for key, value in state.items():
        name, _, kind = key.rpartition(".")
        layer, _, inner = name.partition(".")[2].partition(".") if name.startswith("layers.") else ("", "", name)
        place = f"model.layers.{layer}.{NAMES.get(inner, inner)}" if layer else NAMES.get(name, name)
        many = {"attention.wq": heads, "attention.wk": kv_heads}.get(inner)
        if many is not None:
            value = _halves(value.unflatten(0, (many, -1))).flatten(0, 1)
        elif "normalization" in inner:
            many = heads if "q_norm" in inner else kv_heads
            value = _halves(value[None]).expand(many, -1).contiguous()
        found[f"{place}.{kind}"] = value
    return found


def _halves(heads: Tensor) -> Tensor:
    """From rotary pairs beside each other to halves, in the second dimension of `[head, width, …]`."""
    return heads.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)


def _vqgan_of(state: dict[str, Tensor]) -> PublishedVQGAN:
    channels = shape_in(state, "encoder.conv_in.weight", 4)[0]
    levels = range(count_in(state, "encoder.down."))
    widths = [shape_in(state, f"encoder.down.{i}.block.0.conv1.weight", 4)[0] for i in levels]
    entries, width = shape_in(state, "quantize.embedding.weight", 2)
    blocks = count_in(state, "encoder.down.0.block.")
    latents = shape_in(state, "encoder.conv_out.weight", 4)[0]
    config = ChameleonVQVAEConfig(
        embed_dim=width,
        num_embeddings=entries,
        latent_channels=latents,
        base_channels=channels,
        channel_multiplier=[each // channels for each in widths],
        num_res_blocks=blocks,
    )
    with torch.device("meta"):
        return PublishedVQGAN(ChameleonVQVAE(config), vq_of(state))


def _both(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Keys of `PublishedVQGAN`, of a VQGAN's."""
    read = {key: value for key, value in state.items() if not key.startswith("decoder.")}
    return {f"vq.{k}": v for k, v in vq_renamed(state).items()} | {f"reader.{k}": v for k, v in read.items()}


def _processor(file: Path, needed: Sequence[str]) -> ChameleonProcessor:
    words = read_words(file, (*SPECIAL.values(), "<racm3:break>", "<eoss>", *needed))
    if IMAGE not in words.get_vocab():
        refuse_lacking(file, words.get_vocab(), [IMAGE_BEFORE])
        words = Tokenizer.from_str(words.to_str().replace(f'"{IMAGE_BEFORE}"', f'"{IMAGE}"'))
    return ChameleonProcessor(ChameleonImageProcessorPil(), fast_tokenizer(words, SPECIAL))
