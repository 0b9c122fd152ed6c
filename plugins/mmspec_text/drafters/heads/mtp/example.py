"""Multi-token layers of random weights, in memory: what the conformance kit and tests draft with."""

import torch
from torch import Tensor

from mmspec.hosts.model_info import ModelInfo
from mmspec_text.drafters.heads.mtp.checkpoint import MtpCheckpoint
from mmspec_text.drafters.heads.mtp.family import MIMO, Family, own_keys


def random_checkpoint(
    model_info: ModelInfo, family: Family = MIMO, depths: int = 1, seed: int = 0, gain: float = 2.0
) -> MtpCheckpoint:
    """Layers for a target whose decoder layers are stored under the names that they have in memory."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        values = torch.randn(shape, generator=generator)
        return values * gain / shape[-1] ** 0.5 if len(shape) > 1 else 1 + 0.3 * values

    hidden, layer = model_info.config.hidden_size, model_info.language.layers[-1]
    shapes = {"projection.weight": (hidden, 2 * hidden)}
    own, blocks = {}, {}
    for depth in range(depths):
        for part in own_keys(family, depth, 0):
            own[f"layers.{depth}.{part}"] = drawn(*shapes.get(part, (hidden,)))
        for key, value in layer.state_dict().items():
            blocks[f"layers.{depth}.{key}"] = drawn(*value.shape)
    originals = tuple(family.at(family.block, depth, 0) for depth in range(depths))
    return MtpCheckpoint("random", family, depths, own, blocks, originals, tuple(sorted({*own, *blocks})))
