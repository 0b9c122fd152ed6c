"""Fixtures of our own, of the kind that `mmspec check --parity` takes: random weights in steps of 0.02 under the
official keys, inputs, and what `published_oasis.py` makes of them.

`python tests/video/parity/make_oasis.py` writes them beside this file.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parent))
import published_oasis

STEP = 0.02
DIT = {
    "input_h": 4, "input_w": 6, "patch_size": 2, "in_channels": 3, "hidden_size": 32, "depth": 2, "num_heads": 2,
    "external_cond_dim": 5, "max_frames": 4,
}  # fmt: skip
VAE = {
    "latent_dim": 3, "input_height": 8, "input_width": 12, "patch_size": 4, "enc_dim": 32, "enc_depth": 1,
    "enc_heads": 2, "dec_dim": 32, "dec_depth": 2, "dec_heads": 2,
}  # fmt: skip


def linear(made, name, enters, leaves, bias=True):
    made[f"{name}.weight"] = (leaves, enters)
    if bias:
        made[f"{name}.bias"] = (leaves,)


def transformer():
    """Shapes by official key; the rotary frequencies are left out, as in published files."""
    made, dim, side = {}, DIT["hidden_size"], DIT["patch_size"]
    made |= {"x_embedder.proj.weight": (dim, DIT["in_channels"], side, side), "x_embedder.proj.bias": (dim,)}
    linear(made, "t_embedder.mlp.0", 256, dim)
    linear(made, "t_embedder.mlp.2", dim, dim)
    linear(made, "external_cond", DIT["external_cond_dim"], dim)
    for name in (f"blocks.{i}.{axis}" for i in range(DIT["depth"]) for axis in "st"):
        linear(made, f"{name}_attn.to_qkv", dim, 3 * dim, bias=False)
        linear(made, f"{name}_attn.to_out", dim, dim)
        linear(made, f"{name}_mlp.fc1", dim, 4 * dim)
        linear(made, f"{name}_mlp.fc2", 4 * dim, dim)
        linear(made, f"{name}_adaLN_modulation.1", dim, 6 * dim)
    linear(made, "final_layer.linear", dim, side * side * DIT["in_channels"])
    linear(made, "final_layer.adaLN_modulation.1", dim, 2 * dim)
    return made


def autoencoder():
    """Shapes by official key."""
    made, side = {}, VAE["patch_size"]
    made |= {"patch_embed.proj.weight": (VAE["enc_dim"], 3, side, side), "patch_embed.proj.bias": (VAE["enc_dim"],)}
    for half, short in (("encoder", "enc"), ("decoder", "dec")):
        dim = VAE[f"{short}_dim"]
        for name in (f"{half}.{i}" for i in range(VAE[f"{short}_depth"])):
            for part in ("norm1", "norm2"):
                made |= {f"{name}.{part}.weight": (dim,), f"{name}.{part}.bias": (dim,)}
            linear(made, f"{name}.attn.qkv", dim, 3 * dim)
            linear(made, f"{name}.attn.proj", dim, dim)
            linear(made, f"{name}.mlp.fc1", dim, 4 * dim)
            linear(made, f"{name}.mlp.fc2", 4 * dim, dim)
        made |= {f"{short}_norm.weight": (dim,), f"{short}_norm.bias": (dim,)}
    linear(made, "quant_conv", VAE["enc_dim"], 2 * VAE["latent_dim"])
    linear(made, "post_quant_conv", VAE["latent_dim"], VAE["dec_dim"])
    linear(made, "predictor", VAE["dec_dim"], 3 * side * side)
    return made


def drawn(shapes, generator):
    """Weights as int8 steps, large enough that what comes out depends on all of them; norms around 1."""
    state = {}
    for key, shape in sorted(shapes.items()):
        spread = 3.0 if "adaLN" in key or "t_embedder" in key else 10.0
        centre = 50 if "norm" in key and key.endswith("weight") else 0
        steps = torch.randn(shape, generator=generator) * spread + centre
        state[key] = steps.round().clamp(-127, 127).to(torch.int8)
    return state


def fixture(stem):
    """State in steps, inputs and outputs, configuration."""
    whole = stem == "oasis_dit"
    generator = torch.Generator().manual_seed(13 + whole)
    state = drawn(transformer() if whole else autoencoder(), generator)
    weights = {key: steps * STEP for key, steps in state.items()}
    if whole:
        x, t = torch.randn(2, 3, 3, 4, 6, generator=generator), torch.tensor([[14, 14, 700], [999, 0, 350]])
        actions = torch.rand(2, 3, 5, generator=generator).round()
        v = [published_oasis.velocity(weights, DIT, *row) for row in zip(x, t, actions, strict=True)]
        return state, {"x": x, "t": t, "actions": actions, "v": torch.stack(v)}, DIT
    z, image = torch.randn(2, 6, 3, generator=generator), torch.rand(2, 3, 8, 12, generator=generator) * 2 - 1
    decoded = [published_oasis.decoded(weights, VAE, latents) for latents in z]
    mean = [published_oasis.encoded(weights, VAE, picture) for picture in image]
    io = {"z": z, "image": image, "decoded": torch.stack(decoded), "posterior_mean": torch.stack(mean)}
    return state, io, VAE


def write(folder):
    """Both files."""
    for stem in ("oasis_dit", "oasis_vae"):
        state, io, config = fixture(stem)
        held = {f"state.{k}": t for k, t in state.items()} | {f"io.{k}": t.contiguous() for k, t in io.items()}
        save_file(held, Path(folder) / f"{stem}.safetensors", {"config": json.dumps(config)})


if __name__ == "__main__":
    torch.set_num_threads(1)
    write(Path(__file__).parent)
