"""The published maths of MAR once more, as plainly as it can be written: loops, and no module of ours.

What our fixture records comes from here, so that our model is compared with somebody else's reading of the paper (arXiv
2406.11838) and of the official code, not with itself. One picture, or one token, at a time.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F


def linear(state, name, x):
    return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def norm(x, state=None, name=""):
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-6).sqrt()
    return x * state[f"{name}.weight"] + state[f"{name}.bias"] if name else x


def attended(state, name, x, heads):
    query, key, value = linear(state, f"{name}.qkv", x).split(x.shape[1], 1)
    width, out = x.shape[1] // heads, []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        weights = (query[:, part] @ key[:, part].T / math.sqrt(width)).softmax(1)
        out.append(weights @ value[:, part])
    return linear(state, f"{name}.proj", torch.cat(out, 1))


def blocks(state, half, x, depth, heads):
    for i in range(depth):
        name = f"{half}_blocks.{i}"
        x = x + attended(state, f"{name}.attn", norm(x, state, f"{name}.norm1"), heads)
        inner = F.gelu(linear(state, f"{name}.mlp.fc1", norm(x, state, f"{name}.norm2")))
        x = x + linear(state, f"{name}.mlp.fc2", inner)
    return norm(x, state, f"{half}_norm")


def encoded(state, config, tokens, mask, label):
    """`[buffer + known, dim]` of `tokens [cell, dim]`, `mask [cell]` (1 = unknown), and a class; None: no class."""
    first = state["fake_latent"][0] if label is None else state["class_emb.weight"][label]
    rows, places = [first] * config["buffer_size"], list(range(config["buffer_size"]))
    for cell in range(len(tokens)):
        if not mask[cell]:
            rows.append(linear(state, "z_proj", tokens[cell]))
            places.append(config["buffer_size"] + cell)
    x = norm(torch.stack(rows) + state["encoder_pos_embed_learned"][0, places], state, "z_proj_ln")
    return blocks(state, "encoder", x, config["encoder_depth"], config["encoder_num_heads"])


def decoded(state, config, hidden, mask):
    """`[cell, dim]`: what the head is told."""
    known, rows = iter(linear(state, "decoder_embed", hidden)), []
    for place in range(config["buffer_size"] + len(mask)):
        seen = place < config["buffer_size"] or not mask[place - config["buffer_size"]]
        rows.append(next(known) if seen else state["mask_token"][0, 0])
    x = torch.stack(rows) + state["decoder_pos_embed_learned"][0]
    x = blocks(state, "decoder", x, config["decoder_depth"], config["decoder_num_heads"])
    return x[config["buffer_size"] :] + state["diffusion_pos_embed_learned"][0]


def net(state, config, x, t, z):
    """`[2 · dim]`: the head's noise and variance for one token."""
    name = "diffloss.net"
    angles = torch.tensor([float(t) / 10_000 ** (i / 128) for i in range(128)])
    time = linear(state, f"{name}.time_embed.mlp.0", torch.cat([angles.cos(), angles.sin()]))
    told = F.silu(linear(state, f"{name}.time_embed.mlp.2", F.silu(time)) + linear(state, f"{name}.cond_embed", z))
    x = linear(state, f"{name}.input_proj", x)
    for i in range(config["diffloss_d"]):
        block = f"{name}.res_blocks.{i}"
        shift, scale, gate = linear(state, f"{block}.adaLN_modulation.1", told).chunk(3)
        h = norm(x, state, f"{block}.in_ln") * (1 + scale) + shift
        x = x + gate * linear(state, f"{block}.mlp.2", F.silu(linear(state, f"{block}.mlp.0", h)))
    shift, scale = linear(state, f"{name}.final_layer.adaLN_modulation.1", told).chunk(2)
    return linear(state, f"{name}.final_layer.linear", norm(x) * (1 + scale) + shift)


def guided(state, config, x, t, z, null, scale):
    """The same with guided noise; the variance is that of `z`."""
    given, free = net(state, config, x, t, z), net(state, config, x, t, null)
    half = len(x)
    return torch.cat([free[:half] + scale * (given[:half] - free[:half]), given[half:]])


def kept(time):
    """The share of the signal's variance that is left after `time + 1` of 1000 noising steps."""
    share = 1.0
    for t in range(time + 1):
        now, after = (math.cos((u / 1000 + 0.008) / 1.008 * math.pi / 2) ** 2 for u in (t, t + 1))
        share *= 1 - min(1 - after / now, 0.999)
    return share


def times(steps):
    return [int(time) for time in np.round(np.linspace(0, 999, steps))]


def posterior(steps, step, x, out):
    """Mean and log-variance of the state after `x`, by the formulas of DDPM (2006.11239, eq. 7) and 2102.09672."""
    noise, between = out.double().chunk(2, -1)
    here, before = kept(times(steps)[step]), kept(times(steps)[step - 1]) if step else 1.0
    beta = 1 - here / before
    x0 = (x.double() - math.sqrt(1 - here) * noise) / math.sqrt(here)
    mean = math.sqrt(before) * beta / (1 - here) * x0 + math.sqrt(1 - beta) * (1 - before) / (1 - here) * x.double()
    if step == 0:  # its variance is 0; what is recorded has the neighbour's as its least
        after = kept(times(steps)[1])
        least = (1 - after / here) * (1 - here) / (1 - after)
    else:
        least = beta * (1 - before) / (1 - here)
    share = (between + 1) / 2
    return mean.float(), (share * math.log(beta) + (1 - share) * math.log(least)).float()


def sampled(state, config, label, order, normal, num_iter, steps, scale, growth, temperature):
    """Tokens `[cell, dim]` of one picture. `normal(cell, index)` is a token's noise; `order` is drawn from its end."""
    cells = len(order)
    tokens, mask = torch.zeros(cells, state["z_proj.weight"].shape[1]), torch.ones(cells)
    for turn in range(num_iter):
        z, null = (decoded(state, config, encoded(state, config, tokens, mask, c), mask) for c in (label, None))
        left = max(1, min(int(mask.sum()) - 1, math.floor(cells * math.cos(math.pi / 2 * (turn + 1) / num_iter))))
        now = 1 + (scale - 1) * (cells - left) / cells if growth == "linear" else scale
        after = torch.zeros(cells)
        if turn < num_iter - 1:
            after[order[:left]] = 1
        for cell in torch.nonzero(mask - after)[:, 0].tolist():
            x = normal(cell, steps)
            for step in range(steps - 1, -1, -1):
                out = guided(state, config, x, times(steps)[step], z[cell], null[cell], now)
                x, log_variance = posterior(steps, step, x, out)
                if step:
                    x = x + temperature * (log_variance / 2).exp() * normal(cell, step)
            tokens[cell] = x
        mask = after
    return tokens
