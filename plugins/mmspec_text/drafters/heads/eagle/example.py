"""Heads of random weights, in memory: what the conformance kit and tests draft with; nothing is downloaded."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mmspec_text.drafters.heads.eagle.checkpoint import Checkpoint
from mmspec_text.drafters.heads.eagle.family import EAGLE, Architecture
from mmspec_text.drafters.heads.eagle.network import EagleNetwork

THIRD = Architecture(
    hidden=16,
    intermediate=24,
    heads=2,
    key_heads=1,
    head_dim=8,
    layers=1,
    vocab=7,
    draft_vocab=7,
    features=3,
    target_hidden=16,
    fused=True,
    projected=True,
    own_embedding=False,
    own_output=True,
    final_norm=True,
    embedding_norm=False,
    first_norms=frozenset({"input_layernorm", "hidden_norm"}),
    rope={"rope_type": "default", "rope_theta": 10000.0},
)
"""A head of EAGLE-3 for the Llama of `mmspec.testing.tiny_models`."""


def random_weights(architecture: Architecture, seed: int = 0, gain: float = 2.0) -> dict[str, Tensor]:
    """Weights in float32, by the names of the network; norms are random, too."""
    with torch.device("meta"):
        shapes = {
            key: value.shape for key, value in EagleNetwork(architecture, architecture.vocab).state_dict().items()
        }
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for key, shape in shapes.items():
        drawn = torch.randn(shape, generator=generator, device="cpu")
        weights[key] = drawn * gain / shape[-1] ** 0.5 if len(shape) > 1 else 1 + 0.3 * drawn
    return weights


def random_checkpoint(
    architecture: Architecture = THIRD,
    layer_ids: Sequence[int] = (0, 1, 2),
    seed: int = 0,
    maps: Mapping[str, Tensor] | None = None,
) -> Checkpoint:
    """A head of random weights, with the maps `d2t` and `t2d` of a pruned vocabulary if there are any."""
    weights = {**random_weights(architecture, seed), **(maps or {})}
    return Checkpoint("random", EAGLE, architecture, tuple(layer_ids), weights, ())
