"""Tiny pipelines over models that draw pictures, with tokenizers of whole words."""

from typing import Any

import torch
from diffusers import VQModel
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    ChameleonImageProcessor,
    ChameleonProcessor,
    Emu3ImageProcessor,
    Emu3Processor,
    JanusImageProcessor,
    JanusProcessor,
    PreTrainedTokenizerFast,
)

from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec_image.chameleon_pipeline import ChameleonPipeline
from mmspec_image.emu3_pipeline import Emu3Pipeline
from tests.support.examples.written import tiny_chameleon, tiny_emu3

WORDS = ["a", "red", "fox", "blue", "bird", *"0123456789", "*"]


def tokenizer(names: dict[str, int], marks: dict[str, str], bos: str | None = None) -> PreTrainedTokenizerFast:
    """Words behind three special tokens, and the model's own names."""
    table = {"<pad>": 0, "<bos>": 1, "<eos>": 2} | {word: 3 + i for i, word in enumerate(WORDS)} | names
    words = Tokenizer(models.WordLevel(table, unk_token="<pad>"))
    split = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(True), pre_tokenizers.Punctuation()]
    words.pre_tokenizer = pre_tokenizers.Sequence(split)
    made = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token=bos, extra_special_tokens=marks, padding_side="left"
    )
    made.add_special_tokens({"additional_special_tokens": list(names)})
    return made


def caption_tokenizer(words: list[str], longest: int) -> PreTrainedTokenizerFast:
    """Whole words, the first of which are `<pad>` and `<unk>`; padded on the left."""
    known = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    known.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special: dict[str, Any] = {"pad_token": "<pad>", "unk_token": "<unk>", "padding_side": "left"}
    return PreTrainedTokenizerFast(tokenizer_object=known, **special, model_max_length=longest)


def janus_words(cells: int) -> JanusProcessor:
    """Whole words, for a `tiny_janus` of so many cells a picture."""
    known = ["<pad>", "<bos>", "<boi>", "a", "red", "fox", "blue", "bird", "<image>", "<eoi>", "<unk>"]
    known += ["<|User|>:", "<|Assistant|>:", "Say:"]
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(known)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    marks = {"image_token": "<image>", "boi_token": "<boi>", "eoi_token": "<eoi>"}
    said = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<bos>", unk_token="<unk>", extra_special_tokens=marks
    )
    return JanusProcessor(JanusImageProcessor(), said, num_image_tokens=cells)


def emu3_pipe() -> Emu3Pipeline:
    model = tiny_emu3()
    names = {name: i for name, i in model.config.vocabulary_map.items() if "visual" not in name}
    marks = {
        "image_token": "<image>",
        "boi_token": "<|image start|>",
        "eoi_token": "<|image end|>",
        "image_wrapper_token": "<|image token|>",
        "eof_token": "<|extra_201|>",
    }
    return quiet(Emu3Pipeline(model, Emu3Processor(Emu3ImageProcessor(), tokenizer(names, marks, bos="<bos>"))))


def vq(codes: int = 16, **how: Any) -> VQModel:
    """Two pixels a code, per side."""
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    sizes = {"block_out_channels": (8, 8), "norm_num_groups": 4, "latent_channels": 4, "vq_embed_dim": 4}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        made = VQModel(**blocks, **sizes, num_vq_embeddings=codes, **{"lookup_from_codebook": True, **how})
        made.quantize.embedding.weight.data.normal_()
    return made.eval()


def chameleon_pipe(sized: bool) -> ChameleonPipeline:
    """Anole, or Lumina-mGPT (`sized`)."""
    model = tiny_chameleon()
    names = {name: i for name, i in model.config.vocabulary_map.items() if "IMGIMG" not in name} | {"<sep>": 19}
    said = tokenizer(names, {"image_token": "<image>"})
    said.sep_token = "<sep>"
    return quiet(ChameleonPipeline(model, ChameleonProcessor(ChameleonImageProcessor(), said), vq(), sized))


def llamagen_vq(codes: int = 24) -> LlamaGenVQ:
    """Two pixels a code."""
    torch.manual_seed(2)
    sizes: dict[str, Any] = {"encoder_ch_mult": (1, 1), "decoder_ch_mult": (1, 1), "z_channels": 32}
    return LlamaGenVQ(codes, ch=32, **sizes, num_res_blocks=1).eval()


def sharp(model: Any, seed: int = 1) -> Any:
    """Weights large enough that codes depend on what stands before them."""
    torch.manual_seed(seed)
    for weights in model.parameters():
        weights.data.copy_(torch.randn_like(weights) * (0.4 if weights.dim() > 1 else 1.0))
    return model.eval()


def quiet(pipe: Any) -> Any:
    pipe.set_progress_bar_config(disable=True)
    return pipe
