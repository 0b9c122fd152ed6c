"""Medusa's heads: the authors' layout, alone and inside a whole model, and vLLM's, also pruned, with one
output, and with the target's."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from mmspec_text.drafters.medusa import Medusa, canonical, read_medusa
from tests.support.path_heads.layout import Given, PathLayout, Shapes, silu

HEADS, BLOCKS = 3, 2


def kept(vocab: int) -> Tensor:
    """The ids of a pruned vocabulary, not in order."""
    return torch.arange(0, vocab, 2).flip(0)


def shapes(prefix: str, hidden: int, vocab: int) -> Shapes:
    made: Shapes = {}
    for head in range(HEADS):
        for block in range(BLOCKS):
            made[f"{prefix}{head}.{block}.linear.weight"] = (hidden, hidden)
            made[f"{prefix}{head}.{block}.linear.bias"] = (hidden,)
        made[f"{prefix}{head}.{BLOCKS}.weight"] = (vocab, hidden)
    return made


def vllm_shapes(outputs: int, bias: bool, share: int, hidden: int, vocab: int) -> Shapes:
    made: Shapes = {}
    for head in range(HEADS):
        for block in range(BLOCKS):
            made[f"medusa_heads.blocks.{head}.layers.{block}.weight"] = (hidden, hidden)
            if bias:
                made[f"medusa_heads.blocks.{head}.layers.{block}.bias"] = (hidden,)
    for head in range(outputs):
        made[f"medusa_heads.lm_heads.{head}.weight"] = (-(-vocab // share), hidden)
    return made


def forward(prefix: str, given: Given, features: Tensor, units: Sequence[int], path: Sequence[int]) -> list[Tensor]:
    w, found = given.weights, []
    for head in range(len(path) + 1):
        x = features[-1].double()
        for block in range(BLOCKS):
            name = f"{prefix}{head}.{block}.linear"
            x = x + silu(w[f"{name}.weight"] @ x + w[f"{name}.bias"])
        found.append(w[f"{prefix}{head}.{BLOCKS}.weight"] @ x)
    return found


def vllm_forward(given: Given, features: Tensor, units: Sequence[int], path: Sequence[int]) -> list[Tensor]:
    w, found = given.weights, []
    pruned = int(given.config.get("truncated_vocab_size") or len(given.output)) < int(given.config["vocab_size"])
    for head in range(len(path) + 1):
        x = features[-1].double()
        for block in range(BLOCKS):
            name = f"medusa_heads.blocks.{head}.layers.{block}"
            y = w[f"{name}.weight"] @ x
            x = x + silu(y + w[f"{name}.bias"] if f"{name}.bias" in w else y)
        first = w.get("medusa_heads.lm_heads.0.weight", given.output)
        rows = w.get(f"medusa_heads.lm_heads.{head}.weight", first)
        logits = (rows @ x) * given.config.get("logit_scale", 1.0)
        if pruned:
            whole = torch.full((len(given.output),), -torch.inf, dtype=torch.float64)
            for row, unit in enumerate(w["token_map"].tolist()):
                whole[unit] = logits[unit if len(logits) == len(given.output) else row]
            logits = whole
        found.append(logits)
    return found


def config(hidden: int, vocab: int) -> dict[str, object]:
    sizes = {"hidden_size": hidden, "vocab_size": vocab, "num_heads": HEADS, "num_hidden_layers": BLOCKS}
    return {"model_type": "medusa", **sizes, "truncated_vocab_size": vocab}


def pruned(hidden: int, vocab: int) -> dict[str, object]:
    return {**config(hidden, vocab), "truncated_vocab_size": len(kept(vocab)), "logit_scale": 0.5}


MEDUSA = {
    "medusa": PathLayout(
        Medusa,
        read_medusa,
        canonical,
        lambda hidden, vocab: {"medusa_num_heads": 2, "medusa_num_layers": 1},  # as published: too few
        partial(shapes, ""),
        partial(forward, ""),
        file="medusa_lm_head.safetensors",
    ),
    "medusa-2": PathLayout(
        Medusa,
        read_medusa,
        canonical,
        lambda hidden, vocab: {"medusa_num_heads": HEADS, "num_hidden_layers": 32},
        partial(shapes, "medusa_head."),
        partial(forward, "medusa_head."),
        extra=("lm_head.weight", "model.embed_tokens.weight"),
    ),
    "medusa-vllm": PathLayout(
        Medusa, read_medusa, canonical, config, partial(vllm_shapes, HEADS, False, 1), vllm_forward
    ),
    "medusa-vllm-one-output": PathLayout(
        Medusa,
        read_medusa,
        canonical,
        lambda hidden, vocab: {**config(hidden, vocab), "original_lm_head": True, "medusa_fc_bias": True},
        partial(vllm_shapes, 1, True, 1),
        vllm_forward,
        optional=("medusa_heads.lm_heads.0.weight",),
    ),
    "medusa-vllm-targets-output": PathLayout(
        Medusa,
        read_medusa,
        canonical,
        lambda hidden, vocab: {**config(hidden, vocab), "original_lm_head": True},
        partial(vllm_shapes, 0, True, 1),
        vllm_forward,
    ),
    "medusa-vllm-pruned": PathLayout(
        Medusa,
        read_medusa,
        canonical,
        pruned,
        partial(vllm_shapes, HEADS, True, 2),
        vllm_forward,
        integers=lambda vocab: {"token_map": kept(vocab)},
    ),
    "medusa-vllm-whole-outputs": PathLayout(
        Medusa,
        read_medusa,
        canonical,
        pruned,
        partial(vllm_shapes, HEADS, True, 1),
        vllm_forward,
        integers=lambda vocab: {"token_map": kept(vocab)},
    ),
}
