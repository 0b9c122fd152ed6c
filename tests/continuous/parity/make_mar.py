"""A fixture of our own, of the kind that `mmspec check --parity` takes: random weights in steps of 0.02 under the
official keys, inputs, and what `published_mar.py` makes of them.

`python tests/continuous/parity/make_mar.py` writes it beside this file.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parent))
import published_mar

STEP = 0.02
CONFIG = {
    "img_size": 32, "vae_stride": 4, "patch_size": 2, "vae_embed_dim": 2, "mlp_ratio": 2, "class_num": 5,
    "buffer_size": 3, "encoder_embed_dim": 16, "encoder_depth": 2, "encoder_num_heads": 2, "decoder_embed_dim": 24,
    "decoder_depth": 1, "decoder_num_heads": 3, "diffloss_d": 2, "diffloss_w": 16, "num_sampling_steps": "10",
}  # fmt: skip
CELLS, TOKEN = 16, 8


def shapes():
    """Shapes by official key."""
    config, made = CONFIG, {}

    def linear(name, enters, leaves):
        made.update({f"{name}.weight": (leaves, enters), f"{name}.bias": (leaves,)})

    def norm(name, width):
        made.update({f"{name}.weight": (width,), f"{name}.bias": (width,)})

    for half in ("encoder", "decoder"):
        dim = config[f"{half}_embed_dim"]
        made[f"{half}_pos_embed_learned"] = (1, config["buffer_size"] + CELLS, dim)
        for name in (f"{half}_blocks.{i}" for i in range(config[f"{half}_depth"])):
            norm(f"{name}.norm1", dim)
            linear(f"{name}.attn.qkv", dim, 3 * dim)
            linear(f"{name}.attn.proj", dim, dim)
            norm(f"{name}.norm2", dim)
            linear(f"{name}.mlp.fc1", dim, 2 * dim)
            linear(f"{name}.mlp.fc2", 2 * dim, dim)
        norm(f"{half}_norm", dim)
    outer, inner, width = config["encoder_embed_dim"], config["decoder_embed_dim"], config["diffloss_w"]
    made |= {"fake_latent": (1, outer), "class_emb.weight": (config["class_num"], outer), "mask_token": (1, 1, inner)}
    made["diffusion_pos_embed_learned"] = (1, CELLS, inner)
    linear("z_proj", TOKEN, outer)
    norm("z_proj_ln", outer)
    linear("decoder_embed", outer, inner)
    linear("diffloss.net.time_embed.mlp.0", 256, width)
    linear("diffloss.net.time_embed.mlp.2", width, width)
    linear("diffloss.net.cond_embed", inner, width)
    linear("diffloss.net.input_proj", TOKEN, width)
    for name in (f"diffloss.net.res_blocks.{i}" for i in range(config["diffloss_d"])):
        norm(f"{name}.in_ln", width)
        linear(f"{name}.mlp.0", width, width)
        linear(f"{name}.mlp.2", width, width)
        linear(f"{name}.adaLN_modulation.1", width, 3 * width)
    linear("diffloss.net.final_layer.linear", width, 2 * TOKEN)
    linear("diffloss.net.final_layer.adaLN_modulation.1", width, 2 * width)
    return made


def drawn(generator):
    """Weights as int8 steps, large enough that what comes out depends on all of them; norms around 1."""
    state = {}
    for key, shape in sorted(shapes().items()):
        spread = 4.0 if "time_embed" in key or "adaLN" in key else 15.0
        centre = 50 if len(shape) == 1 and ("norm" in key or "_ln" in key) and "weight" in key else 0
        steps = torch.randn(shape, generator=generator) * spread + centre
        state[key] = steps.round().clamp(-127, 127).to(torch.int8)
    return state


def recorded(state, generator):
    """Inputs, and what the published maths makes of them."""
    tokens, xt = torch.randn(2, CELLS, TOKEN, generator=generator), torch.randn(2, TOKEN, generator=generator)
    unknown = torch.rand(2, CELLS, generator=generator).argsort(1) >= 6
    labels, t = torch.tensor([1, 4]), torch.tensor([777, 30])
    rows = list(zip(tokens, unknown, labels.tolist(), strict=True))
    encoder = [published_mar.encoded(state, CONFIG, *row) for row in rows]
    z = torch.stack([published_mar.decoded(state, CONFIG, e, m) for e, m in zip(encoder, unknown, strict=True)])
    each = list(zip(xt, t.tolist(), z[:, 0], z[:, 1], strict=True))
    net, free = ([published_mar.net(state, CONFIG, x, t, row[i]) for x, t, *row in each] for i in (0, 1))
    guided = [published_mar.guided(state, CONFIG, *row, 2.5) for row in each]
    both = guided + [torch.cat([a[:TOKEN], b[TOKEN:]]) for a, b in zip(guided, free, strict=True)]
    fourth = published_mar.times(10)[4]
    outs = [published_mar.net(state, CONFIG, x, fourth, row[0]) for x, _, *row in each]
    mean, log_variance = published_mar.posterior(10, 4, xt, torch.stack(outs))
    return {
        "tokens": tokens, "mask": unknown.float(), "labels": labels, "xt": xt, "t": t, "encoder": torch.stack(encoder),
        "z": z, "net": torch.stack(net), "net_cfg2p5": torch.stack(both), "step4_mean": mean,
        "step4_log_variance": log_variance,
    }  # fmt: skip


def fixture():
    """State in steps, inputs and outputs."""
    generator = torch.Generator().manual_seed(11)
    state = drawn(generator)
    return state, recorded({key: steps * STEP for key, steps in state.items()}, generator)


if __name__ == "__main__":
    torch.set_num_threads(1)
    held = {f"{kind}.{k}": t for kind, made in zip(("state", "io"), fixture(), strict=True) for k, t in made.items()}
    metadata = {"config": json.dumps(CONFIG)}
    save_file({k: t.contiguous() for k, t in held.items()}, Path(__file__).parent / "mar.safetensors", metadata)
