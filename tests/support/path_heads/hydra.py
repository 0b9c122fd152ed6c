"""Hydra's heads, and Hydra++'s, whose blocks are numbered with the dropout layers between them."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from mmspec_text.drafters.hydra import Hydra, canonical, read_hydra
from tests.support.eagle_forward import norm
from tests.support.path_heads.block import CONFIG, block_shapes, last_state
from tests.support.path_heads.layout import Given, PathLayout, Shapes, silu

HEADS, LAYERS = 3, 2
PREFIX = "prefix_embeding_layer."


def shapes(plus: bool, bias: bool, hidden: int, vocab: int) -> Shapes:
    made: Shapes = {}
    for head in range(HEADS):
        for layer in range(LAYERS):
            name = f"hydra_mlp.{head}.{1 + 2 * layer if plus else layer}"
            width = (head + 2) * hidden if layer == 0 else hidden
            made[f"{name}.linear.weight"], made[f"{name}.linear.bias"] = (hidden, width), (hidden,)
            if layer == 0:
                made[f"{name}.res_connection.weight"], made[f"{name}.res_connection.bias"] = (hidden, width), (hidden,)
        name = f"hydra_lm_head.{head}.1" if plus else f"hydra_lm_head.{head}"
        made[f"{name}.weight"] = (vocab, hidden)
        if bias:
            made[f"{name}.bias"] = (vocab,)
    return {**made, **block_shapes(f"{PREFIX}layers.0.", hidden), f"{PREFIX}norm.weight": (hidden,)} if plus else made


def forward(plus: bool, given: Given, features: Tensor, units: Sequence[int], path: Sequence[int]) -> list[Tensor]:
    w, found = given.weights, []
    feature = features[-1].double()
    if plus:
        eps = float(given.config.get("rms_norm_eps") or 1e-6)
        feature = norm(last_state(w, f"{PREFIX}layers.", features, given.config), w[f"{PREFIX}norm.weight"], eps)
    for head in range(len(path) + 1):
        x = torch.cat([feature, *(given.embedding[unit] for unit in [units[-1], *path[:head]])])
        for layer in range(LAYERS):
            name = f"hydra_mlp.{head}.{1 + 2 * layer if plus else layer}"
            residual = x
            if layer == 0:
                residual = w[f"{name}.res_connection.weight"] @ x + w[f"{name}.res_connection.bias"]
            x = residual + silu(w[f"{name}.linear.weight"] @ x + w[f"{name}.linear.bias"])
        name = f"hydra_lm_head.{head}.1" if plus else f"hydra_lm_head.{head}"
        logits = w[f"{name}.weight"] @ x
        found.append(logits + w[f"{name}.bias"] if f"{name}.bias" in w else logits)
    return found


ARCHITECTURE = {"hydra_num_heads": HEADS, "hydra_num_layers": LAYERS, "grounded_heads": True, "hidden_state_offset": 0}
HYDRA = {
    "hydra": PathLayout(
        Hydra,
        read_hydra,
        canonical,
        lambda hidden, vocab: {**ARCHITECTURE, "hydra_head_arch": "mlp"},
        partial(shapes, False, True),
        partial(forward, False),
        file="hydra_lm_head.safetensors",
    ),
    "hydra-without-bias": PathLayout(
        Hydra,
        read_hydra,
        canonical,
        lambda hidden, vocab: {**ARCHITECTURE, "vocab_size": vocab},
        partial(shapes, False, False),
        partial(forward, False),
    ),
    "hydra++": PathLayout(
        Hydra,
        read_hydra,
        canonical,
        lambda hidden, vocab: {**ARCHITECTURE, **CONFIG, "hydra_head_arch": "prefix-mlp"},
        partial(shapes, True, True),
        partial(forward, True),
        file="hydra_lm_head.safetensors",
        extra=(f"{PREFIX}embed_tokens.weight",),
    ),
}
