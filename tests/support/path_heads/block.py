"""A decoder layer over all known features, written out unit by unit."""

from collections.abc import Mapping

import torch
from torch import Tensor

from tests.support.eagle_forward import norm, turned
from tests.support.path_heads.layout import Shapes, silu

HEADS, KEYS, WIDTH, INNER = 2, 1, 8, 20
CONFIG = {"num_attention_heads": HEADS, "rms_norm_eps": 1e-5, "rope_theta": 5000.0}


def block_shapes(prefix: str, hidden: int, width: int = WIDTH) -> Shapes:
    made: Shapes = {f"{prefix}input_layernorm.weight": (hidden,), f"{prefix}post_attention_layernorm.weight": (hidden,)}
    for part, heads in (("q", HEADS), ("k", KEYS), ("v", KEYS)):
        made[f"{prefix}self_attn.{part}_proj.weight"] = (heads * width, hidden)
    made[f"{prefix}self_attn.o_proj.weight"] = (hidden, HEADS * width)
    made |= {f"{prefix}mlp.{part}_proj.weight": (INNER, hidden) for part in ("gate", "up")}
    return {**made, f"{prefix}mlp.down_proj.weight": (hidden, INNER)}


def attended(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """One head's mean of values."""
    scores = torch.stack([query @ key for key in keys]) / len(query) ** 0.5
    weights = torch.exp(scores - scores.max())
    out = torch.zeros_like(values[0])
    for weight, value in zip(weights / weights.sum(), values, strict=True):
        out = out + weight * value
    return out


def last_state(
    w: Mapping[str, Tensor], prefix: str, features: Tensor, theta: float = float(CONFIG["rope_theta"])
) -> Tensor:
    """The layer's state at the last feature."""
    eps = float(CONFIG["rms_norm_eps"])
    residuals = [feature.double() for feature in features]
    xs = [norm(x, w[f"{prefix}input_layernorm.weight"], eps) for x in residuals]
    parts = [[w[f"{prefix}self_attn.{part}_proj.weight"] @ x for x in xs] for part in "qkv"]
    last = len(xs) - 1
    out = []
    for head in range(HEADS):
        own, group = slice(head * WIDTH, (head + 1) * WIDTH), head * KEYS // HEADS
        shared = slice(group * WIDTH, (group + 1) * WIDTH)
        keys = [turned(key[shared], position, theta) for position, key in enumerate(parts[1])]
        out.append(attended(turned(parts[0][last][own], last, theta), keys, [value[shared] for value in parts[2]]))
    u = residuals[last] + w[f"{prefix}self_attn.o_proj.weight"] @ torch.cat(out)
    x = norm(u, w[f"{prefix}post_attention_layernorm.weight"], eps)
    gate, up = w[f"{prefix}mlp.gate_proj.weight"] @ x, w[f"{prefix}mlp.up_proj.weight"] @ x
    return u + w[f"{prefix}mlp.down_proj.weight"] @ (silu(gate) * up)
