"""Picture models of published sizes for `mmspec bench core`; weights are random."""

from typing import Any

import torch
from torch import nn

from mmspec.bench.core.shape import Shape, Workload
from mmspec.kits.pictures.conditions import Condition
from mmspec_image.models.llamagen import LlamaGenTransformer

SHAPES = (
    Shape(
        "llamagen-3b",
        "mmspec_image.shapes:llamagen",
        {"vocab_size": 16384, "grid": 24, "dim": 3200, "n_layer": 24, "n_head": 32},
        {"vocab_size": 64, "grid": 16, "dim": 32, "n_layer": 2, "n_head": 4, "multiple_of": 16, "num_classes": 5},
        contexts=(1,),
        generates=False,
    ),
)
"""LlamaGen (arXiv 2406.06525), classes, pictures of 384 pixels."""


def llamagen(device: torch.device, dtype: torch.dtype, **numbers: Any) -> Workload:
    """LlamaGen with random weights, under guidance: a picture's prompt is its class."""
    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaGenTransformer(**numbers).eval().requires_grad_(False)
    nn.Module.to(model, dtype)  # past diffusers' own, which warns
    config = model.config
    heads = config.n_kv_head or config.n_head
    slot = 2 * 2 * config.n_layer * heads * (config.dim // config.n_head)  # both halves of the guidance

    def prompt(rows: int, context: int) -> Condition:
        return Condition(torch.arange(rows, device=device) % config.num_classes)

    return Workload(model, prompt, slot, units=2)
