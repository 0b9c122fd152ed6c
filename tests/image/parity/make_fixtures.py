"""Fixtures of our own, of the kind that `mmspec check --parity` takes: random weights in steps of 0.02 under the
official keys, inputs, and what `published_llamagen.py` makes of them.

`python tests/image/parity/make_fixtures.py` writes the two transformers beside this file. The VQ tokenizer's
convolutions have at least 32 channels, which is hundreds of KB of weights: tests make that one anew.
"""

import json
import sys
from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parent))
import published_llamagen

STEP, GUIDANCE = 0.02, 3.0
DIM, HIDDEN, HEADS, LAYERS, VOCAB, GRID = 32, 96, 4, 2, 24, 4
CLASSES, CAPTION, FEATURES = 5, 6, 12
CONFIG = {"dim": DIM, "n_layer": LAYERS, "n_head": HEADS, "vocab_size": VOCAB, "block_size": GRID**2}
VQ = {"codebook_size": 24, "codebook_embed_dim": 8, "ch": 32, "encoder_ch_mult": [1, 2], "decoder_ch_mult": [1, 1]}
VQ |= {"z_channels": 32, "num_res_blocks": 1}


def transformer(captions):
    """Shapes of a transformer by official key."""
    shapes = {"tok_embeddings.weight": (VOCAB, DIM), "output.weight": (VOCAB, DIM), "norm.weight": (DIM,)}
    if captions:
        shapes |= {
            "cls_embedding.cap_proj.fc1.weight": (DIM, FEATURES),
            "cls_embedding.cap_proj.fc2.weight": (DIM, DIM),
        }
        shapes["cls_embedding.uncond_embedding"] = (CAPTION, FEATURES)
    else:
        shapes["cls_embedding.embedding_table.weight"] = (CLASSES + 1, DIM)
    for i in range(LAYERS):
        for name, shape in {
            "attention.wqkv": (3 * DIM, DIM), "attention.wo": (DIM, DIM), "feed_forward.w1": (HIDDEN, DIM),
            "feed_forward.w3": (HIDDEN, DIM), "feed_forward.w2": (DIM, HIDDEN), "attention_norm": (DIM,),
            "ffn_norm": (DIM,),
        }.items():  # fmt: skip
            shapes[f"layers.{i}.{name}.weight"] = shape
    return shapes


def tokenizer():
    """Shapes of a VQ tokenizer by official key."""
    shapes = {"quantize.embedding.weight": (VQ["codebook_size"], 8)}

    def conv(name, inner, outer, size=3):
        shapes.update({f"{name}.weight": (outer, inner, size, size), f"{name}.bias": (outer,)})

    def norm(name, width):
        shapes.update({f"{name}.weight": (width,), f"{name}.bias": (width,)})

    def residual(name, inner, outer):
        norm(f"{name}.norm1", inner)
        conv(f"{name}.conv1", inner, outer)
        norm(f"{name}.norm2", outer)
        conv(f"{name}.conv2", outer, outer)
        if inner != outer:
            conv(f"{name}.nin_shortcut", inner, outer, 1)

    def attention(name, width):
        norm(f"{name}.norm", width)
        for part in ("q", "k", "v", "proj_out"):
            conv(f"{name}.{part}", width, width, 1)

    def half(name, enters, widths, count, attending, resample, deepest, leaves):
        conv(f"{name}.conv_in", enters, widths[0])
        for i, (inner, outer) in enumerate(pairwise(widths)):
            for j in range(count):
                residual(f"{name}.conv_blocks.{i}.res.{j}", inner if j == 0 else outer, outer)
                if i == attending:
                    attention(f"{name}.conv_blocks.{i}.attn.{j}", outer)
            if i < len(widths) - 2:
                conv(f"{name}.conv_blocks.{i}.{resample}.conv", outer, outer)
        residual(f"{name}.mid.0", deepest, deepest)
        attention(f"{name}.mid.1", deepest)
        residual(f"{name}.mid.2", deepest, deepest)
        norm(f"{name}.norm_out", widths[-1])
        conv(f"{name}.conv_out", widths[-1], leaves)

    half("encoder", 3, [32, 32, 64], 1, 1, "downsample", 64, 32)
    half("decoder", 32, [32, 32, 32], 2, 0, "upsample", 32, 3)
    conv("quant_conv", 32, 8, 1)
    conv("post_quant_conv", 8, 32, 1)
    return shapes


def drawn(shapes, generator):
    """Weights as int8 steps, large enough that what comes out depends on all of them; norms around 1."""
    state = {}
    for key, shape in sorted(shapes.items()):
        spread = 20.0 if "cls_embedding" in key or "embedding" in key or len(shape) == 2 else 6.0
        steps = torch.randn(shape, generator=generator) * spread + (50 if "norm" in key and "weight" in key else 0)
        state[key] = steps.round().clamp(-127, 127).to(torch.int8)
    return state


def save(path, state, io, config):
    tensors = {f"state.{k}": t for k, t in state.items()} | {f"io.{k}": t.contiguous() for k, t in io.items()}
    save_file(tensors, path, {"config": json.dumps(config)})


def write_transformer(path, captions):
    """`llamagen_c2i.safetensors` or `llamagen_t2i.safetensors`."""
    generator = torch.Generator().manual_seed(7 + captions)
    state = drawn(transformer(captions), generator)
    weights, codes = {k: t * STEP for k, t in state.items()}, torch.randint(VOCAB, (2, GRID**2), generator=generator)
    cond = torch.randn(2, CAPTION, FEATURES, generator=generator) if captions else torch.tensor([3, 0])
    rows = list(zip(cond, codes, strict=True))
    io = {
        "cond": cond,
        "idx": codes,
        "logits": torch.stack([published_llamagen.logits(weights, CONFIG, c, i[:-1]) for c, i in rows]),
        "greedy_cfg3": torch.stack([published_llamagen.greedy(weights, CONFIG, c, GUIDANCE) for c, _ in rows]).int(),
    }
    if captions:
        mask = io["emb_masks"] = (torch.arange(CAPTION) >= torch.tensor([[2], [4]])).float()
        made = [published_llamagen.greedy(weights, CONFIG, c, GUIDANCE, m) for c, m in zip(cond, mask, strict=True)]
        io["greedy_cfg3_masked"] = torch.stack(made).int()
    save(path, state, io, CONFIG | {"model_type": "t2i" if captions else "c2i"})


def write_tokenizer(path):
    """`llamagen_vq.safetensors`."""
    generator = torch.Generator().manual_seed(9)
    state = drawn(tokenizer(), generator)
    weights = {k: t * STEP for k, t in state.items()}
    codes = torch.randint(VQ["codebook_size"], (4, 4), generator=generator)
    image = torch.rand(1, 3, 8, 8, generator=generator) * 2 - 1
    io = {"codes": codes.flatten()[None], "image": image, "decoded": published_llamagen.decoded(weights, VQ, codes)}
    io["image_codes"] = published_llamagen.encoded(weights, VQ, image).flatten()[None]
    save(path, state, io, VQ)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for kind in ("c2i", "t2i"):
        write_transformer(Path(__file__).parent / f"llamagen_{kind}.safetensors", kind == "t2i")
