"""The published maths of LlamaGen once more, as plainly as it can be written: loops, no cache, no module of ours.

What fixtures of our own record comes from here, so that our models are compared with somebody else's reading of the
papers (arXiv 2406.06525, 2012.09841) and of the official code, not with themselves. One picture at a time.
"""

import math

import torch
import torch.nn.functional as F


def rotated(x, place, given, grid, base=10_000.0):
    """A head's query or key `[width]` at a place: code `place - given` of the grid; zero before the first code."""
    if place < given:
        return torch.zeros_like(x)
    out, quarter = torch.empty_like(x), len(x) // 4
    for pair in range(len(x) // 2):
        along = (place - given) // grid if pair < quarter else (place - given) % grid
        angle = along / base ** (2 * (pair % quarter) / (len(x) // 2))
        a, b = x[2 * pair], x[2 * pair + 1]
        out[2 * pair] = a * math.cos(angle) - b * math.sin(angle)
        out[2 * pair + 1] = a * math.sin(angle) + b * math.cos(angle)
    return out


def rms(x, weight, eps=1e-5):
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def attended(state, layer, x, seen, heads, given, grid):
    """Causal attention of `x [place, dim]`; `seen [place]` bool says which conditioning places are no padding."""
    width, places = x.shape[1] // heads, len(x)
    query, key, value = (x @ state[f"layers.{layer}.attention.wqkv.weight"].T).split(x.shape[1], 1)
    out = torch.zeros_like(x)
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        keys = torch.stack([rotated(key[j, part], j, given, grid) for j in range(places)])
        for i in range(places):
            open_ = torch.tensor([j == i or (j < i and bool(seen[j])) for j in range(places)])
            scores = keys @ rotated(query[i, part], i, given, grid) / width**0.5
            out[i, part] = scores.masked_fill(~open_, -torch.inf).softmax(0) @ value[:, part]
    return out @ state[f"layers.{layer}.attention.wo.weight"].T


def condition(state, cond):
    """Conditioning vectors `[given, dim]` of a class (an int) or of caption features; None: the null condition."""
    if "cls_embedding.embedding_table.weight" in state:
        return state["cls_embedding.embedding_table.weight"][-1 if cond is None else int(cond)][None]
    features = state["cls_embedding.uncond_embedding"] if cond is None else cond
    inner = F.gelu(features @ state["cls_embedding.cap_proj.fc1.weight"].T, approximate="tanh")
    return inner @ state["cls_embedding.cap_proj.fc2.weight"].T


def logits(state, config, cond, codes, mask=None):
    """Scores of the codes after a condition: `[codes + 1, vocab]`."""
    first, heads, grid = condition(state, cond), config["n_head"], math.isqrt(config["block_size"])
    x = torch.cat([first, state["tok_embeddings.weight"][codes]])
    seen = torch.ones(len(x), dtype=torch.bool)
    if mask is not None:
        seen[: len(first)] = mask.bool()
    for layer in range(config["n_layer"]):
        name = f"layers.{layer}"
        normed = rms(x, state[f"{name}.attention_norm.weight"])
        x = x + attended(state, layer, normed, seen, heads, len(first), grid)
        normed = rms(x, state[f"{name}.ffn_norm.weight"])
        gate, up, down = (state[f"{name}.feed_forward.w{i}.weight"] for i in (1, 3, 2))
        x = x + (F.silu(normed @ gate.T) * (normed @ up.T)) @ down.T
    return (rms(x, state["norm.weight"]) @ state["output.weight"].T)[len(first) - 1 :]


def greedy(state, config, cond, scale, mask=None):
    """The likeliest codes under guidance."""
    codes = torch.empty(0, dtype=torch.int64)
    for _ in range(config["block_size"]):
        given, null = (logits(state, config, c, codes, mask)[-1] for c in (cond, None))
        codes = torch.cat([codes, (null + scale * (given - null)).argmax()[None]])
    return codes


def conv(state, name, x, **how):
    return F.conv2d(x, state[f"{name}.weight"], state[f"{name}.bias"], **how)


def group(state, name, x):
    return F.group_norm(x, 32, state[f"{name}.weight"], state[f"{name}.bias"], 1e-6)


def residual(state, name, x):
    h = conv(state, f"{name}.conv1", F.silu(group(state, f"{name}.norm1", x)), padding=1)
    h = conv(state, f"{name}.conv2", F.silu(group(state, f"{name}.norm2", h)), padding=1)
    return h + (conv(state, f"{name}.nin_shortcut", x) if f"{name}.nin_shortcut.weight" in state else x)


def looked(state, name, x):
    """Every cell looks at all cells."""
    h = group(state, f"{name}.norm", x)
    query, key, value = (conv(state, f"{name}.{part}", h).flatten(2)[0] for part in "qkv")
    weights = (query.T @ key / query.shape[0] ** 0.5).softmax(-1)  # [cell, cell]
    return x + conv(state, f"{name}.proj_out", (value @ weights.T).unflatten(1, x.shape[2:])[None])


def blocks(state, half, x, levels, count, attending, resample):
    for i in range(levels):
        for j in range(count):
            x = residual(state, f"{half}.conv_blocks.{i}.res.{j}", x)
            if i == attending:
                x = looked(state, f"{half}.conv_blocks.{i}.attn.{j}", x)
        if i < levels - 1:
            x = resample(f"{half}.conv_blocks.{i}", x)
    return x


def middle(state, half, x):
    return residual(state, f"{half}.mid.2", looked(state, f"{half}.mid.1", residual(state, f"{half}.mid.0", x)))


def finished(state, half, x):
    return conv(state, f"{half}.conv_out", F.silu(group(state, f"{half}.norm_out", x)), padding=1)


def decoded(state, config, codes):
    """A picture `[1, 3, height, width]` of codes `[row, column]`."""
    levels = len(config["decoder_ch_mult"])
    entries = F.normalize(state["quantize.embedding.weight"], dim=1)[codes]
    x = conv(state, "post_quant_conv", entries.permute(2, 0, 1)[None])
    x = middle(state, "decoder", conv(state, "decoder.conv_in", x, padding=1))

    def larger(name, x):
        return conv(state, f"{name}.upsample.conv", x.repeat_interleave(2, 2).repeat_interleave(2, 3), padding=1)

    return finished(state, "decoder", blocks(state, "decoder", x, levels, config["num_res_blocks"] + 1, 0, larger))


def encoded(state, config, picture):
    """Codes `[row, column]` of a picture `[1, 3, height, width]`."""
    levels = len(config["encoder_ch_mult"])
    x = conv(state, "encoder.conv_in", picture, padding=1)

    def smaller(name, x):
        return conv(state, f"{name}.downsample.conv", F.pad(x, (0, 1, 0, 1)), stride=2)

    x = blocks(state, "encoder", x, levels, config["num_res_blocks"], levels - 1, smaller)
    x = conv(state, "quant_conv", finished(state, "encoder", middle(state, "encoder", x)))
    cells, entries = F.normalize(x[0].permute(1, 2, 0), dim=-1), state["quantize.embedding.weight"]
    return (cells[..., None, :] - F.normalize(entries, dim=1)).pow(2).sum(-1).argmin(-1)
