"""The published maths of Oasis once more, as plainly as it can be written: loops, and no module of ours.

What our fixtures record comes from here, so that our models are compared with somebody else's reading of the official
code, not with themselves. One clip, one frame, one cell, one head, one pair of numbers at a time.
"""

import math

import torch
import torch.nn.functional as F


def linear(state, name, x):
    made = x @ state[f"{name}.weight"].T
    return made + state[f"{name}.bias"] if f"{name}.bias" in state else made


def norm(x, state=None, name=""):
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-6).sqrt()
    return x * state[f"{name}.weight"] + state[f"{name}.bias"] if name else x


def turned(x, angles):
    """A head's vector, its neighbouring pairs turned by so many angles; pairs without one stay."""
    x = x.clone()
    for i, angle in enumerate(angles):
        a, b, cos, sin = float(x[2 * i]), float(x[2 * i + 1]), math.cos(angle), math.sin(angle)
        x[2 * i], x[2 * i + 1] = a * cos - b * sin, b * cos + a * sin
    return x


def pixel_angles(row, column, rows, columns, frequencies, most):
    """Along each axis places run from -1 to 1, frequencies from 1 to `most / 2`, in half turns."""
    angles = []
    for place, places in ((row, rows), (column, columns)):
        at = -1 + 2 * place / (places - 1)
        for i in range(frequencies):
            angles.append(at * math.pi * (1 + (most / 2 - 1) * i / (frequencies - 1)))
    return angles


def attended(queries, keys, values, width):
    """`[n, dim]`: every query over all keys, head by head."""
    out = []
    for query in queries:
        parts = []
        for head in range(len(query) // width):
            part = slice(head * width, (head + 1) * width)
            weights = torch.stack([query[part] @ key[part] / math.sqrt(width) for key in keys]).softmax(0)
            parts.append(sum(weight * value[part] for weight, value in zip(weights, values, strict=True)))
        out.append(torch.cat(parts))
    return torch.stack(out)


def heads_turned(x, angles, width):
    return torch.cat([turned(x[i : i + width], angles) for i in range(0, len(x), width)])


def patches(picture, side):
    """`[cell, 3 · side · side]`, rows of cells first; within a patch, channel first."""
    cut = []
    for top in range(0, picture.shape[1], side):
        for left in range(0, picture.shape[2], side):
            cut.append(picture[:, top : top + side, left : left + side].flatten())
    return torch.stack(cut)


def told(state, time, action):
    """The condition of one frame."""
    angles = torch.tensor([float(time) / 10_000 ** (i / 128) for i in range(128)])
    inner = F.silu(linear(state, "t_embedder.mlp.0", torch.cat([angles.cos(), angles.sin()])))
    return linear(state, "t_embedder.mlp.2", inner) + linear(state, "external_cond", action)


def velocity(state, config, x, t, actions):
    """`[frame, channel, height, width]` of one clip; a frame sees itself and what came before."""
    side, dim, width = config["patch_size"], config["hidden_size"], config["hidden_size"] // config["num_heads"]
    rows, columns = config["input_h"] // side, config["input_w"] // side
    kernel = state["x_embedder.proj.weight"].flatten(1)
    cells = [patches(frame, side) @ kernel.T + state["x_embedder.proj.bias"] for frame in x]
    conditions = [told(state, time, action) for time, action in zip(t, actions, strict=True)]
    places = [(r, c) for r in range(rows) for c in range(columns)]
    where = [pixel_angles(r, c, rows, columns, width // 4, 256) for r, c in places]
    for i in range(config["depth"]):
        for axis in ("s", "t"):
            name = f"blocks.{i}.{axis}"
            parts = [linear(state, f"{name}_adaLN_modulation.1", F.silu(c)).split(dim) for c in conditions]
            made = []
            for frame, part in zip(cells, parts, strict=True):
                inner = norm(frame) * (1 + part[1]) + part[0]
                made.append(linear(state, f"{name}_attn.to_qkv", inner).split(dim, 1))
            mixed = []
            for f, (query, key, value) in enumerate(made):
                if axis == "s":
                    query, key = (
                        torch.stack([heads_turned(v, a, width) for v, a in zip(t, where, strict=True)])
                        for t in (query, key)
                    )
                    mixed.append(attended(query, key, value, width))
                    continue
                over = []
                for cell in range(len(places)):
                    turns = [[g / 10_000 ** (2 * j / width) for j in range(width // 2)] for g in range(f + 1)]
                    keys = [heads_turned(made[g][1][cell], turns[g], width) for g in range(f + 1)]
                    values = [made[g][2][cell] for g in range(f + 1)]
                    over.append(attended([heads_turned(query[cell], turns[f], width)], keys, values, width)[0])
                mixed.append(torch.stack(over))
            for f, part in enumerate(parts):
                cells[f] = cells[f] + part[2] * linear(state, f"{name}_attn.to_out", mixed[f])
                inner = norm(cells[f]) * (1 + part[4]) + part[3]
                inner = F.gelu(linear(state, f"{name}_mlp.fc1", inner), approximate="tanh")
                cells[f] = cells[f] + part[5] * linear(state, f"{name}_mlp.fc2", inner)
    out = torch.zeros_like(x)
    for f, frame in enumerate(cells):
        shift, scale = linear(state, "final_layer.adaLN_modulation.1", F.silu(conditions[f])).split(dim)
        leaves = linear(state, "final_layer.linear", norm(frame) * (1 + scale) + shift)
        for (r, c), cell in zip(places, leaves, strict=True):
            square = cell.reshape(side, side, -1).permute(2, 0, 1)
            out[f, :, r * side : (r + 1) * side, c * side : (c + 1) * side] = square
    return out


def through(state, half, x, depth, heads, rows, columns):
    """The blocks of the autoencoder's one half; a quarter of a head's width turns with the row, one with the column."""
    width = x.shape[1] // heads
    places = [(r, c) for r in range(rows) for c in range(columns)]
    where = [pixel_angles(r, c, rows, columns, width // 8, rows * columns) for r, c in places]
    for i in range(depth):
        name = f"{half}.{i}"
        query, key, value = linear(state, f"{name}.attn.qkv", norm(x, state, f"{name}.norm1")).split(x.shape[1], 1)
        query, key = (
            torch.stack([heads_turned(v, a, width) for v, a in zip(t, where, strict=True)]) for t in (query, key)
        )
        x = x + linear(state, f"{name}.attn.proj", attended(query, key, value, width))
        inner = F.gelu(linear(state, f"{name}.mlp.fc1", norm(x, state, f"{name}.norm2")))
        x = x + linear(state, f"{name}.mlp.fc2", inner)
    return x


def encoded(state, config, picture):
    """`[cell, latent]` of one picture in [-1, 1]: the mean."""
    side = config["patch_size"]
    x = patches(picture, side) @ state["patch_embed.proj.weight"].flatten(1).T + state["patch_embed.proj.bias"]
    grid = config["input_height"] // side, config["input_width"] // side
    x = through(state, "encoder", x, config["enc_depth"], config["enc_heads"], *grid)
    return linear(state, "quant_conv", norm(x, state, "enc_norm"))[:, : config["latent_dim"]]


def decoded(state, config, latents):
    """One picture of `latents [cell, latent]`."""
    side = config["patch_size"]
    rows, columns = config["input_height"] // side, config["input_width"] // side
    x = linear(state, "post_quant_conv", latents)
    x = through(state, "decoder", x, config["dec_depth"], config["dec_heads"], rows, columns)
    pixels = linear(state, "predictor", norm(x, state, "dec_norm"))
    picture = torch.zeros(3, rows * side, columns * side)
    for cell, patch in enumerate(pixels):
        top, left = cell // columns * side, cell % columns * side
        picture[:, top : top + side, left : left + side] = patch.reshape(3, side, side)
    return picture
