"""DFlash heads of random weights, in memory: what the conformance kit and tests draft with; nothing is downloaded."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mmspec_text.drafters.heads.dflash.checkpoint import DFlashCheckpoint
from mmspec_text.drafters.heads.dflash.family import DFLASH, DFlashArchitecture, Sight
from mmspec_text.drafters.heads.dflash.network import DFlashNetwork

PRODUCT = DFlashArchitecture(
    hidden=16,
    intermediate=24,
    heads=2,
    key_heads=1,
    head_dim=8,
    sights=(Sight(), Sight()),
    vocab=7,
    draft_vocab=7,
    features=2,
    target_hidden=16,
    own_embedding=False,
    own_output=False,
    own_mask=False,
    block=5,
    mask_token=3,
    from_root=False,
    rope={"rope_type": "default", "rope_theta": 10000.0},
)
"""A head of DFlash for the Llama of `mmspec.testing.tiny_models`."""


def random_dflash(
    architecture: DFlashArchitecture = PRODUCT,
    layer_ids: Sequence[int] = (0, 1),
    seed: int = 0,
    maps: Mapping[str, Tensor] | None = None,
    gain: float = 2.0,
) -> DFlashCheckpoint:
    """A head of random weights in float32, with the maps `d2t` and `t2d` of a pruned vocabulary if there are any."""
    with torch.device("meta"):
        shapes = {key: value.shape for key, value in DFlashNetwork(architecture, 1).state_dict().items()}
    generator = torch.Generator().manual_seed(seed)
    weights = dict(maps or {})
    for key, shape in shapes.items():
        drawn = torch.randn(shape, generator=generator, device="cpu")
        weights[key] = drawn * gain / shape[-1] ** 0.5 if len(shape) > 1 else 1 + 0.3 * drawn
    return DFlashCheckpoint("random", DFLASH, architecture, tuple(layer_ids), weights, ())
