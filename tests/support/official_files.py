"""Tiny checkpoints in the layouts that authors published, with weights by a formula, as folders of files.

The weights of a key depend on its name and shape alone, so that a fixture holds what the authors' classes made of them,
and no weights.
"""

import argparse
import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

LIQUID_SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<boi>", "<unconditional>"]
LIQUID_WORDS = [*LIQUID_SPECIAL, *["Generate", "an", "image", "based", "on", "this", "description.", "a", "red", "fox"]]
LIQUID = dict(
    model_type="gemma", architectures=["GemmaForCausalLM"], vocab_size=len(LIQUID_WORDS) + 8192, hidden_size=32,
    intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1, head_dim=8,
    max_position_embeddings=2048, hidden_act="gelu_pytorch_tanh", hidden_activation="gelu_pytorch_tanh",
    pad_token_id=0, eos_token_id=1, bos_token_id=2, torch_dtype="float32", rms_norm_eps=1e-6,
)  # fmt: skip
SIMPLEAR_SPECIAL = ["<|endoftext|>", "<unk>", "<|t2i|>", "<|soi|>"]
SIMPLEAR_TEXT = "A highly realistic image of a red fox aerial view, low quality,"
SIMPLEAR_WORDS = [*SIMPLEAR_SPECIAL, *SIMPLEAR_TEXT.split(" ")]
SIMPLEAR = dict(
    model_type="qwen2", architectures=["SimpARForCausalLM"], vocab_size=len(SIMPLEAR_WORDS) + 64000, hidden_size=16,
    intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, torch_dtype="float32",
    max_position_embeddings=2048, tie_word_embeddings=False, rope_theta=1000000.0, rms_norm_eps=1e-6, use_cache=True,
)  # fmt: skip
EMU35 = dict(
    model_type="Emu3", architectures=["Emu3ForCausalLM"], hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=12, max_position_embeddings=512, rope_theta=1000000.0,
    rms_norm_eps=1e-5, vocab_size=502, pad_token_id=266, bos_token_id=472, eos_token_id=473, torch_dtype="float32",
)  # fmt: skip

MAR = dict(
    img_size=64, vae_stride=16, patch_size=1, encoder_embed_dim=32, encoder_depth=2, encoder_num_heads=4,
    decoder_embed_dim=32, decoder_depth=2, decoder_num_heads=4, mlp_ratio=4, vae_embed_dim=16, class_num=5,
    buffer_size=4, diffloss_d=2, diffloss_w=32, num_sampling_steps="10",
)  # fmt: skip

Shapes = dict[str, tuple[int, ...]]

# Chameleon's tokenizer: control words, codes, and names of reserved ids, which are four less than the ids.
CODES, EOSS, BREAK, TURN, ROW_END = 8192, 8196, 8197, 8710, 8803
FIRST_WORD, VOCAB = 8840, 8900
SENTENCE = [
    "Generate",
    "an",
    "image",
    "of",
    "8x12",
    "12x8",
    "according",
    "to",
    "the",
    "following",
    "prompt:",
    "a",
    "red",
    "fox",
    "blue",
    "bird",
    "Hi",
    "my",
    "darling",
]
CHAMELEON = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)

JANUS_SPECIAL = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<unk>", "<image_placeholder>"]
JANUS_SPECIAL += ["<begin_of_image>", "<end_of_image>", "<|User|>", "<|Assistant|>"]
JANUS_WORDS = [*JANUS_SPECIAL, ":", "a", "red", "fox", "blue", "bird"]
JANUS = {
    "model_type": "multi_modality",
    "architectures": ["MultiModalityCausalLM"],
    "language_config": dict(
        model_type="llama", vocab_size=24, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, torch_dtype="float32",
    ),
    "vision_config": {"cls": "CLIPVisionTower", "params": {"image_size": 32, "model_name": "siglip_large_patch16_384"}},
    "aligner_config": dict(
        cls="MlpProjector", params=dict(depth=2, input_dim=64, n_embed=32, projector_type="mlp_gelu"),
    ),
    "gen_vision_config": {"cls": "VQ-16", "params": {"image_token_size": 40, "n_embed": 4}},
    "gen_aligner_config": dict(
        cls="MlpProjector", params=dict(depth=2, input_dim=4, n_embed=32, projector_type="mlp_gelu"),
    ),
    "gen_head_config": dict(cls="vision_head", params=dict(image_token_embed=32, image_token_size=40, n_embed=32)),
}  # fmt: skip

EMU3_MERGES = [b"re", b"red", b"ox", b"fox", b"bi", b"rd", b"bird", b" red", b" fox", b" bird"]
EMU3_CONTROL = ["<|image token|>", "<|image start|>", "<|image end|>", "<|video start|>"]
EMU3_CODES = 24
EMU3 = dict(
    model_type="Emu3", architectures=["Emu3ForCausalLM"], hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, rope_theta=1000000.0, rms_norm_eps=1e-5,
    vocab_size=512, pad_token_id=266, bos_token_id=472, eos_token_id=473, image_area=32 * 32, attention_dropout=0.1,
    torch_dtype="float32",
)  # fmt: skip
EMU3_VQ = dict(
    model_type="Emu3VisionVQ", codebook_size=EMU3_CODES, embed_dim=4, z_channels=4, double_z=False, in_channels=3,
    out_channels=3, temporal_downsample_factor=4, ch=32, ch_mult=[1, 1, 1, 1], num_res_blocks=1, attn_resolutions=[3],
    dropout=0.0,
)  # fmt: skip


def formula(shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """Weights near N(0, s): s is 1 for embeddings and codebooks, 0.35 for matrices; norms are near 1."""
    return {key: _weights(key, tuple(shape)) for key, shape in shapes.items()}


def _weights(key: str, shape: tuple[int, ...]) -> Tensor:
    count = int(np.prod(shape))
    raw = np.random.PCG64(zlib.crc32(key.encode())).random_raw(count)  # this stream is numpy's promise
    drawn = torch.from_numpy((raw.view(np.uint8).reshape(count, 8).astype(np.int64).sum(1) - 1020) / 209.0)
    if "num_batches_tracked" in key:
        return torch.tensor(7)
    if ("embed" in key and len(shape) == 2) or "codebook" in key:
        spread, middle = 1.0, 0.0
    elif len(shape) == 4 or len(shape) == 5:
        spread, middle = (shape[1] * np.prod(shape[2:])) ** -0.5, 0.0
    elif "norm" in key and key.endswith("weight"):
        spread, middle = 0.2, 1.0
    elif key.endswith("running_var"):
        return (drawn.abs() + 0.5).reshape(shape).float()
    else:
        spread, middle = (0.35, 0.0) if len(shape) == 2 else (0.1, 0.0)
    return (drawn * spread + middle).reshape(shape).float()


def saved(folder: Path, name: str, state: dict[str, Tensor], shards: int = 1) -> None:
    """Write weights into a folder, as one file or as shards with their index."""
    folder.mkdir(parents=True, exist_ok=True)
    if shards == 1:
        return save_file(state, folder / f"{name}.safetensors", {"format": "pt"})
    keys = list(state)
    files = {key: f"{name}-{1 + i * shards // len(keys):05d}-of-{shards:05d}.safetensors" for i, key in enumerate(keys)}
    for file in set(files.values()):
        save_file({key: state[key] for key in keys if files[key] == file}, folder / file, {"format": "pt"})
    written(folder / f"{name}.safetensors.index.json", {"metadata": {}, "weight_map": files})


def written(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False))


def chameleon_vocabulary() -> dict[str, int]:
    letters = str.maketrans("0123456789", "ABCDEFGHIJ")
    vocab = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<eoss>": EOSS, "<racm3:break>": BREAK}
    vocab |= {f"IMGIMG{str(code).translate(letters)}Z": 4 + code for code in range(CODES)}
    vocab |= {f"<reserved{number - 4:05d}>": number for number in range(BREAK + 1, FIRST_WORD)}
    return vocab | {word: FIRST_WORD + i for i, word in enumerate(SENTENCE)}


def words_file(vocab: Mapping[str, int], special: Sequence[str], begin: str | None = None) -> dict[str, Any]:
    """The contents of a `tokenizer.json` of whole words; `begin` is a word that it puts first."""
    flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    first = None
    if begin is not None:
        places: list[Any] = [{"SpecialToken": {"id": begin, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
        pair = [*places, {"Sequence": {"id": "B", "type_id": 1}}]
        ids = {begin: {"id": begin, "ids": [vocab[begin]], "tokens": [begin]}}
        first = {"type": "TemplateProcessing", "single": places, "pair": pair, "special_tokens": ids}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": vocab[word], "content": word, **flags} for word in special],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": first,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": dict(vocab), "unk_token": "<unk>"},
    }


def chameleon_tokenizer() -> dict[str, Any]:
    vocab = chameleon_vocabulary()
    return words_file(vocab, [word for word in vocab if word.startswith("<")])


def vqgan() -> Shapes:
    """Taming's VQGAN: two levels, two pixels a code."""
    shapes: Shapes = {}

    def norm(key: str, width: int) -> None:
        shapes[f"{key}.weight"] = shapes[f"{key}.bias"] = (width,)

    def conv(key: str, inner: int, outer: int, side: int = 3) -> None:
        shapes[f"{key}.weight"], shapes[f"{key}.bias"] = (outer, inner, side, side), (outer,)

    def residual(key: str, inner: int, outer: int) -> None:
        norm(f"{key}.norm1", inner), conv(f"{key}.conv1", inner, outer)
        norm(f"{key}.norm2", outer), conv(f"{key}.conv2", outer, outer)
        if inner != outer:
            conv(f"{key}.nin_shortcut", inner, outer, 1)

    def middle(half: str) -> None:
        residual(f"{half}.mid.block_1", 64, 64), residual(f"{half}.mid.block_2", 64, 64)
        norm(f"{half}.mid.attn_1.norm", 64)
        for name in ("q", "k", "v", "proj_out"):
            conv(f"{half}.mid.attn_1.{name}", 64, 64, 1)

    conv("encoder.conv_in", 3, 32)
    residual("encoder.down.0.block.0", 32, 32), conv("encoder.down.0.downsample.conv", 32, 32)
    residual("encoder.down.1.block.0", 32, 64)
    middle("encoder"), norm("encoder.norm_out", 64), conv("encoder.conv_out", 64, 8)
    conv("decoder.conv_in", 8, 64), middle("decoder")
    residual("decoder.up.0.block.0", 64, 32), residual("decoder.up.0.block.1", 32, 32)
    residual("decoder.up.1.block.0", 64, 64), residual("decoder.up.1.block.1", 64, 64)
    conv("decoder.up.1.upsample.conv", 64, 64), norm("decoder.norm_out", 32), conv("decoder.conv_out", 32, 3)
    conv("quant_conv", 8, 4, 1), conv("post_quant_conv", 4, 8, 1)
    shapes["quantize.embedding.weight"] = (CODES, 4)
    return shapes


VQGAN = {
    "embed_dim": 4,
    "n_embed": CODES,
    "ddconfig": dict(
        double_z=False, z_channels=8, resolution=16, in_channels=3, out_ch=3, ch=32, ch_mult=[1, 2], num_res_blocks=1,
        attn_resolutions=[], dropout=0.0,
    ),
}  # fmt: skip


def write_vqgan(folder: Path) -> Path:
    """`tokenizer/` of Chameleon's release."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"state_dict": formula(vqgan())}, folder / "vqgan.ckpt")
    written(folder / "vqgan.yaml", {"model": {"params": VQGAN}})  # JSON is YAML
    written(folder / "text_tokenizer.json", chameleon_tokenizer())
    return folder


def lumina_shapes(width: int, inner: int, vocab: int) -> Shapes:
    """The language model of Lumina-mGPT, with one row of norms for all four heads."""
    shapes: Shapes = {"model.embed_tokens.weight": (vocab, width)}
    for i in range(2):
        at = f"model.layers.{i}"
        shapes |= {f"{at}.self_attn.{name}_proj.weight": (width, width) for name in "qkvo"}
        for kind in ("weight", "bias"):
            shapes |= {f"{at}.self_attn.{name}_norm.{kind}": (1, width // 4) for name in "qk"}
        shapes |= {f"{at}.mlp.{name}_proj.weight": (inner, width) for name in ("gate", "up")}
        shapes |= {f"{at}.mlp.down_proj.weight": (width, inner)}
        shapes |= {f"{at}.{name}.weight": (width,) for name in ("input_layernorm", "post_attention_layernorm")}
    return shapes | {"model.norm.weight": (width,), "lm_head.weight": (vocab, width)}


def write_lumina(folder: Path) -> Path:
    """`Lumina-mGPT-7B-…`, which has no VQ, and whose norms of queries and keys have one row for all heads."""
    width, inner = CHAMELEON["hidden_size"], CHAMELEON["intermediate_size"]
    vq = {
        key: value for key, value in VQGAN["ddconfig"].items() if key not in ("out_ch", "ch", "ch_mult", "z_channels")
    }
    vq |= {"embed_dim": 4, "num_embeddings": CODES, "base_channels": 32, "channel_multiplier": [1, 2]}
    names = chameleon_vocabulary()
    names["<image>"] = names.pop("<reserved08707>")
    config = CHAMELEON | dict(
        architectures=["ChameleonForConditionalGeneration"], model_type="chameleon", num_key_value_heads=4,
        vocab_size=VOCAB, max_position_embeddings=4096, rope_theta=10000.0, rms_norm_eps=1e-5, swin_norm=False,
        model_parallel_size=1, vq_config=vq | {"latent_channels": 8, "out_channels": 3}, vocabulary_map=names,
        mask_image_logits=False, transformers_version="4.44.0", torch_dtype="float32",
    )  # fmt: skip
    saved(folder, "model", formula(lumina_shapes(width, inner, VOCAB)), shards=2)
    written(folder / "config.json", config)
    vocab = chameleon_vocabulary() | {"<|image|>": VOCAB}  # which training adds, and the model has no row for
    written(folder / "tokenizer.json", words_file(vocab, [word for word in vocab if word.startswith("<")]))
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    written(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **special})
    return folder


LUMINA2_VOCAB = 155000 + 16384
LUMINA2_IDS = {"<|endoftext|>": 0, "<unk>": 1, "<|im_end|>": 2, "<racm3:break>": 151665, "<eoss>": 151666}
LUMINA2_IDS |= {"<reserved08706>": 151669, "<reserved08799>": 151670}
LUMINA2_IDS |= {f"<reserved{8800 + n:05d}>": 151671 + n for n in range(1, 40)}


def write_lumina2(folder: Path) -> Path:
    """`Lumina-mGPT-2.0`, with its own words, and codes behind them."""
    config = dict(
        architectures=["ChameleonForConditionalGeneration"], model_type="chameleon", hidden_size=16, swin_norm=False,
        intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=LUMINA2_VOCAB, max_position_embeddings=4096, rope_theta=10000.0, rms_norm_eps=1e-5,
        model_parallel_size=1, torch_dtype="float32", mask_image_logits=False, vocabulary_map={"<image>": 3},
        vq_config=dict(base_channels=32, channel_multiplier=[1], num_res_blocks=1, embed_dim=4, num_embeddings=16),
    )  # fmt: skip
    saved(folder, "model", formula(lumina_shapes(16, 24, LUMINA2_VOCAB)), shards=2)
    written(folder / "config.json", config)
    vocab = LUMINA2_IDS | {word: 10 + i for i, word in enumerate(SENTENCE)}
    written(folder / "tokenizer.json", words_file(vocab, list(LUMINA2_IDS)))
    named = {"unk_token": "<unk>", "pad_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    written(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"} | named)
    return folder


MOVQGAN = {
    "n_embed": 16384,
    "embed_dim": 4,
    "ddconfig": VQGAN["ddconfig"] | dict(z_channels=4, resolution=32, ch_mult=[1, 1, 1, 1], attn_resolutions=[4]),
}
IBQ = {
    "n_embed": EMU3_CODES,
    "embed_dim": 8,
    "ddconfig": VQGAN["ddconfig"] | dict(z_channels=8, resolution=32, ch_mult=[1, 1, 1, 2, 2], attn_resolutions=[2, 4]),
}


def write_vq(file: Path, shapes: Shapes) -> Path:
    """`movqgan_270M.ckpt`, or `model.ckpt` of `Emu3.5-VisionTokenizer`; `shapes` are those of the authors' class."""
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"state_dict": formula(shapes)}, file)
    return file


def write_anole(folder: Path) -> Path:
    """`models/7b/` of Anole, in the layout of Chameleon's own release."""
    width, inner = CHAMELEON["hidden_size"], 128
    shapes: Shapes = {"tok_embeddings.weight": (VOCAB, width)}
    for i in range(CHAMELEON["num_hidden_layers"]):
        shapes |= {f"layers.{i}.attention.w{name}.weight": (width, width) for name in "qkvo"}
        for kind in ("weight", "bias"):
            shapes |= {f"layers.{i}.attention.{name}_normalization.{kind}": (width // 4,) for name in "qk"}
        shapes |= {f"layers.{i}.feed_forward.{name}.weight": (inner, width) for name in ("w1", "w3")}
        shapes |= {f"layers.{i}.feed_forward.w2.weight": (width, inner)}
        shapes |= {f"layers.{i}.{name}.weight": (width,) for name in ("attention_norm", "ffn_norm")}
    shapes |= {"norm.weight": (width,), "output.weight": (VOCAB, width)}
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(formula(shapes) | {"rope.freqs": torch.ones(4)}, folder / "consolidated.pth")
    sizes = dict(dim=width, n_layers=2, n_heads=4, norm_eps=1e-5, rope_theta=10000.0, vocab_size=VOCAB, multiple_of=64)
    written(folder / "params.json", {"model": sizes | {"qk_normalization": True, "swin_norm": False}})
    written(folder / "consolidate_params.json", {"model_parallel_size": 1})
    return folder


def write_janus(folder: Path, shapes: Shapes) -> Path:
    """`Janus-Pro-1B`, as a pickle; `shapes` are those of the authors' class."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(formula(shapes), folder / "pytorch_model.bin")
    written(folder / "config.json", JANUS)
    vocab = {word: number for number, word in enumerate(JANUS_WORDS)}
    written(folder / "tokenizer.json", words_file(vocab, JANUS_SPECIAL, begin=JANUS_SPECIAL[0]))
    return folder


def write_emu3(folder: Path, shapes: Shapes, config: Mapping[str, Any] = EMU3) -> Path:
    """`Emu3-Gen`, or with another `config` Emu3.5; `shapes` are those of the authors' class."""
    saved(folder, "model", formula(shapes), shards=2)
    tokens = [bytes([byte]) for byte in range(256)] + EMU3_MERGES
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens)]
    (folder / "emu3.tiktoken").write_text("\n".join(lines))
    visual = [f"<|visual token {code:06d}|>" for code in range(EMU3_CODES)]
    (folder / "emu3_vision_tokens.txt").write_text("\n".join(EMU3_CONTROL + visual))
    written(folder / "config.json", config)
    return folder


def write_emu3_vq(folder: Path, shapes: Shapes) -> Path:
    """`Emu3-VisionTokenizer`; `shapes` are those of the authors' class."""
    saved(folder, "model", formula(shapes))
    written(folder / "config.json", EMU3_VQ)
    return folder


def write_liquid(folder: Path, shapes: Shapes) -> Path:
    """`Liquid_V1_7B`; its embeddings are its head, and scores of words are low."""
    state = formula(shapes)
    state["model.embed_tokens.weight"][: len(LIQUID_WORDS)] *= 0.05
    state.pop("lm_head.weight", None)
    saved(folder, "model", state, shards=2)
    _words(folder, LIQUID_WORDS, LIQUID_SPECIAL, "<bos>", {"bos_token": "<bos>", "pad_token": "<pad>"})
    written(folder / "config.json", LIQUID)
    return folder


def write_simplear(folder: Path, shapes: Shapes) -> Path:
    """`simpar_1.5B_rl`; scores of words are low."""
    state = formula(shapes)
    state["lm_head.weight"][: len(SIMPLEAR_WORDS)] *= 0.05
    saved(folder, "model", state)
    _words(folder, SIMPLEAR_WORDS, SIMPLEAR_SPECIAL, None, {"pad_token": "<|endoftext|>"})
    written(folder / "config.json", SIMPLEAR)
    return folder


def _words(folder: Path, words: list[str], special: list[str], begin: str | None, named: dict[str, str]) -> None:
    vocab = {word: number for number, word in enumerate(words)}
    written(folder / "tokenizer.json", words_file(vocab, special, begin=begin))
    how = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    written(folder / "tokenizer_config.json", how | named)


def write_mar(folder: Path, shapes: Shapes) -> Path:
    """`checkpoint-last.pth`: the averaged weights are another model's than `model`, and `args` is a namespace."""
    folder.mkdir(parents=True, exist_ok=True)
    of = {key.removeprefix("mar."): shape for key, shape in shapes.items() if key.startswith("mar.")}
    averaged = formula(of)
    for key, value in averaged.items():  # nearly the state itself as the noise: other steps would lead to infinity
        if key.startswith("diffloss.net.") and any(name in key for name in ("adaLN", "final_layer", "input_proj")):
            value *= 0.1
    head = "diffloss.net."
    averaged[f"{head}input_proj.weight"] += torch.eye(*of[f"{head}input_proj.weight"])
    averaged[f"{head}final_layer.linear.weight"][:16] += 0.7 * torch.eye(16, of[f"{head}input_proj.weight"][0])
    found = {"model": {key: value + 1 for key, value in averaged.items()}, "model_ema": averaged, "epoch": 3}
    torch.save(found | {"args": argparse.Namespace(model="mar_base")}, folder / "checkpoint-last.pth")
    vae = {key.removeprefix("vae."): shape for key, shape in shapes.items() if key.startswith("vae.")}
    torch.save({"model": formula(vae)}, folder / "kl16.ckpt")
    return folder
