"""Heads of Clover-2: one cell before a decoder layer, another one along the path."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mmspec_text.drafters.clover_2 import Clover2, read_clover
from tests.support.eagle_forward import norm
from tests.support.path_heads.block import CONFIG, HEADS, block_shapes, last_state
from tests.support.path_heads.layout import Given, PathLayout, Shapes

UNITS = 3
FIRST, FURTHER = "clover_head_mlp_rnn", "clover_head_mlp_rnn2"


def shapes(hidden: int, vocab: int) -> Shapes:
    made = {**block_shapes("layers.0.", hidden, hidden // HEADS), "clover_embed_tokens.weight": (vocab, hidden)}
    made |= {f"clover{part}_norm.weight": (hidden,) for part in ("", "_head")}
    for name in (FIRST, FURTHER):
        made[f"{name}.input_layernorm.weight"] = (hidden,)
        for part in "qkv":
            made[f"{name}.{part}.weight"], made[f"{name}.{part}.bias"] = (hidden, hidden), (hidden,)
    for name, width in (("clover_head_mlp", hidden), ("clover_head_mlp2", 2 * hidden)):
        made[f"{name}.weight"], made[f"{name}.bias"] = (hidden, width), (hidden,)
    return made


def forward(given: Given, features: Tensor, units: Sequence[int], path: Sequence[int]) -> list[Tensor]:
    w, eps, heads = (
        given.weights,
        float(given.config.get("rms_norm_eps") or 1e-6),
        int(given.config["num_attention_heads"]),
    )

    def affine(name: str, x: Tensor) -> Tensor:
        return w[f"{name}.weight"] @ x + w[f"{name}.bias"]

    def stepped(name: str, state: Tensor, token: Tensor) -> Tensor:
        query = affine(f"{name}.q", norm(state, w[f"{name}.input_layernorm.weight"], eps))
        key, value = affine(f"{name}.k", token), affine(f"{name}.v", token)
        added = []
        for q, k, v in zip(query.chunk(heads), key.chunk(heads), value.chunk(heads), strict=True):
            added.append(v * (q @ k) / (q @ q).sqrt() / (k @ k).sqrt())
        return state + torch.cat(added)

    def scored(mixed: Tensor) -> Tensor:
        return given.output @ norm(mixed, w["clover_head_norm.weight"], eps)

    table = w["clover_embed_tokens.weight"]
    rows = [stepped(FIRST, feature.double(), table[unit]) for feature, unit in zip(features, units, strict=True)]
    config = {key: value for key, value in given.config.items() if key not in ("rope_theta", "rope_parameters")}
    state = norm(last_state(w, "layers.", torch.stack(rows), config), w["clover_norm.weight"], eps)
    found = [scored(affine("clover_head_mlp", state))]
    for unit in path:
        state = stepped(FURTHER, state, table[unit])
        found.append(scored(affine("clover_head_mlp2", torch.cat([state, table[unit]]))))
    return found


CLOVER = {
    "clover-2": PathLayout(
        Clover2,
        read_clover,
        lambda key: key,
        lambda hidden, vocab: {**CONFIG, "vocab_size": vocab, "clover": {"num_heads": UNITS, "num_layers": 1}},
        shapes,
        forward,
        extra=("lm_head.weight",),
        normed=False,
    )
}
