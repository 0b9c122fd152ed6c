"""A new layer for multi-token prediction, for a target that was trained without one, and its files.

FastMTP (arXiv 2509.18362): one layer that is recycled to the depth of a draft, a loss weighted by β ** depth (the
recipe's `decay`; the paper's is 0.6), embedding and output layer the target's. The paper's unroll lets a step read the
states of its own step alone; here a step sees the rows that it sees when it drafts (`drafters.heads.unroll`).

The files have the keys of DeepSeek-V3's layer, `model.layers.{L}.…`, whose block is a block of the target's own class:
so the layer could be appended to the target's checkpoint. It is stored in a folder of its own, which `mtp` reads.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.hidden import FINAL
from mmspec.hosts.draft_models import own_target
from mmspec.hosts.model_info import ModelInfo
from mmspec_text.drafters.heads.mtp.block import EXPERTS
from mmspec_text.drafters.heads.mtp.checkpoint import MtpCheckpoint
from mmspec_text.drafters.heads.mtp.family import DEEPSEEK, own_keys
from mmspec_text.drafters.heads.mtp.network import MtpNetwork
from mmspec_text.training.new_head import NewHead, half, write_files
from mmspec_text.training.recipe import DrafterRecipe

LAST = ("o_proj.weight", "down_proj.weight")
"""Ends of the keys of the matrices that write into a block's residual stream."""


def begun_mtp(model: Any, recipe: DrafterRecipe, name: str, ids: Tensor | None = None) -> NewHead:
    """One layer; arguments as in `Begin`."""
    model_info = own_target(model).model_info
    head = new_mtp(model_info, recipe.seed)
    return NewHead(head, (FINAL,), "layers", partial(write_mtp, head, model_info, name))


def new_mtp(model_info: ModelInfo, seed: int) -> MtpNetwork:
    """A layer before training: the target's last one, which at first adds nothing to the target's state."""
    block, kind = model_info.language.layers[-1], type(model_info.model).__name__
    weights = {key: value.detach().float().clone() for key, value in block.state_dict().items()}
    norm = dict(block.named_children()).get("input_layernorm")
    plain = norm is not None and list(norm.state_dict()) == ["weight"] and DEEPSEEK.eps in model_info.config.to_dict()
    if norm is None or not plain or any(EXPERTS in f".{key}" for key in weights):
        raise ValueError(
            f"{kind} has layers with experts, or of another form than a Llama's; no multi-token layer is trained for "
            "them: train --kind eagle3"
        )
    for key in weights:
        if key.endswith(LAST):
            nn.init.zeros_(weights[key])
    hidden, made = model_info.config.hidden_size, torch.Generator().manual_seed(seed)
    unit: Tensor = type(norm)(hidden).get_parameter("weight").detach().float()  # 1, or 0 where a weight w means 1 + w
    projection = torch.zeros(hidden, 2 * hidden).normal_(std=0.02, generator=made)
    projection[:, hidden:] += torch.eye(hidden)
    own = {
        "layers.0.projection.weight": projection,
        "layers.0.embedding_norm.weight": unit.clone(),
        "layers.0.hidden_norm.weight": unit.clone(),
        "layers.0.final_norm.weight": unit + (_size(model_info, unit) - 1),
    }
    blocks = {f"layers.0.{key}": value for key, value in weights.items()}
    start = (DEEPSEEK.at(DEEPSEEK.block, 0, len(model_info.language.layers)),)
    network = MtpNetwork(MtpCheckpoint("new", DEEPSEEK, 1, own, blocks, start, ()), model_info)
    network.join_model(model_info)
    return network.float().requires_grad_(True)


def write_mtp(head: MtpNetwork, model_info: ModelInfo, target: str, folder: Path) -> None:
    """Write a layer for a target of that name into a folder."""
    layers = len(model_info.language.layers)
    start = DEEPSEEK.at(DEEPSEEK.block, 0, layers)
    names = {f"layers.0.{part}": key for part, key in own_keys(DEEPSEEK, 0, layers).items()}
    weights = {}
    for key, value in head.state_dict().items():
        weights[names[key] if key in names else start + key.removeprefix("layers.0.block.")] = half(value)
    config = {
        "verifier": target,
        "num_hidden_layers": layers,
        "num_nextn_predict_layers": 1,
        "hidden_size": model_info.config.hidden_size,
        "vocab_size": model_info.vocab,
        "dtype": "float16",
    }
    write_files(weights, config, folder)


def _size(model_info: ModelInfo, unit: Tensor) -> float:
    """The size of the numbers of the target's last states, those behind its final norm."""
    norms: Any = [part for part in model_info.language.decoder.children() if "norm" in type(part).__name__.lower()]
    weight = ([part.weight for part in norms if part.weight.shape == unit.shape] or [unit])[-1]
    return float((weight.detach().float().cpu() - unit + 1).square().mean().sqrt())
