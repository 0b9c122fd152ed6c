"""Masks, LoRA and sampler of random weights, in memory: what the conformance kit and tests draft with."""

import torch

from mmspec_text.drafters.heads.apple.checkpoint import AppleCheckpoint, Sampler

LAYERS = {"model.layers.0.self_attn.q_proj": (16, 16), "model.layers.1.mlp.up_proj": (24, 16)}
"""Layers of the Llama of `mmspec.testing.tiny_models` that have a LoRA, and their shapes."""


def random_masks(masks: int = 3, rank: int = 2, seed: int = 0) -> AppleCheckpoint:
    """Masks for the Llama of `mmspec.testing.tiny_models`."""
    g = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=g, device="cpu") / shape[-1] ** 0.5

    down = {name: drawn(rank, shape[1]) for name, shape in LAYERS.items()}
    up = {name: drawn(shape[0], rank) for name, shape in LAYERS.items()}
    with torch.device("meta"):
        shapes = {key: value.shape for key, value in Sampler(16, 1).state_dict().items()}
    sampler = {key: drawn(*shape) * 3 if len(shape) > 1 else 1 + 0.3 * drawn(*shape) for key, shape in shapes.items()}
    return AppleCheckpoint("random", drawn(masks, 16) * 0.1, down, up, 2.0, sampler)
