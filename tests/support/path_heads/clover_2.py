"""Heads of Clover-2: one cell before a decoder layer, another one along the path. Of Clover: one along the path."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec_text.drafters.clover import Clover, read_first_clover
from mmspec_text.drafters.clover_2 import Clover2, read_clover
from tests.support.eagle_forward import norm
from tests.support.path_heads.block import CONFIG, HEADS, block_shapes, last_state
from tests.support.path_heads.layout import Given, PathLayout, Shapes, silu

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


class Written:
    """The parts of both forwards."""

    def __init__(self, given: Given) -> None:
        self.given, self.w = given, given.weights
        self.eps = float(given.config.get("rms_norm_eps") or 1e-6)
        self.heads = int(given.config["num_attention_heads"])

    def affine(self, name: str, x: Tensor) -> Tensor:
        return self.w[f"{name}.weight"] @ x + self.w[f"{name}.bias"]

    def normed(self, name: str, x: Tensor) -> Tensor:
        return norm(x, self.w[f"{name}.weight"], self.eps)

    def stepped(self, name: str, state: Tensor, token: Tensor) -> Tensor:
        query = self.affine(f"{name}.q", self.normed(f"{name}.input_layernorm", state))
        key, value = self.affine(f"{name}.k", token), self.affine(f"{name}.v", token)
        added = []
        for q, k, v in zip(*(part.chunk(self.heads) for part in (query, key, value)), strict=True):
            added.append(v * (q @ k) / (q @ q).sqrt() / (k @ k).sqrt())
        return state + torch.cat(added)

    def scored(self, mixed: Tensor) -> Tensor:
        return self.given.output @ self.normed("clover_head_norm", mixed)


def forward(given: Given, features: Tensor, units: Sequence[int], path: Sequence[int]) -> list[Tensor]:
    it, table = Written(given), given.weights["clover_embed_tokens.weight"]
    rows = [it.stepped(FIRST, feature.double(), table[unit]) for feature, unit in zip(features, units, strict=True)]
    config = {key: value for key, value in given.config.items() if key not in ("rope_theta", "rope_parameters")}
    state = it.normed("clover_norm", last_state(it.w, "layers.", torch.stack(rows), config))
    found = [it.scored(it.affine("clover_head_mlp", state))]
    for unit in path:
        state = it.stepped(FURTHER, state, table[unit])
        found.append(it.scored(it.affine("clover_head_mlp2", torch.cat([state, table[unit]]))))
    return found


def first_forward(given: Given, features: Tensor, units: Sequence[int], path: Sequence[int]) -> list[Tensor]:
    it, found = Written(given), []
    state = it.normed("clover_norm", last_state(it.w, "layers.", features, given.config))
    for step, unit in enumerate([units[-1], *path]):
        state = it.stepped(FIRST, state, given.output[unit])
        found.append(it.scored(state + silu(it.affine(f"clover_head_mlp.{step}", state))))
    return found


def first_shapes(hidden: int, vocab: int) -> Shapes:
    own = {
        key: size for key, size in shapes(hidden, vocab).items() if key.startswith(("layers.", f"{FIRST}.", "clover_n"))
    }
    own["clover_head_norm.weight"] = (hidden,)
    for step in range(UNITS):
        own[f"clover_head_mlp.{step}.weight"], own[f"clover_head_mlp.{step}.bias"] = (hidden, hidden), (hidden,)
    return own


def config(hidden: int, vocab: int) -> dict[str, Any]:
    return {**CONFIG, "vocab_size": vocab, "clover": {"num_heads": UNITS, "num_layers": 1}}


CLOVER = {
    "clover": PathLayout(Clover, read_first_clover, lambda key: key, config, first_shapes, first_forward, normed=False),
    "clover-2": PathLayout(
        Clover2,
        read_clover,
        lambda key: key,
        config,
        shapes,
        forward,
        extra=("lm_head.weight",),
        normed=False,
    ),
}
