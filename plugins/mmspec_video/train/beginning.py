"""How a token model begins: knowing which codes look alike, and where the cell to be predicted was a frame ago.

Nothing here is part of the architecture: it is what random weights would have to find first. In a trial of a hundred
steps, held-out clips had 4.0 nats a code instead of 4.8; after five hundred steps little of that was left.
"""

import torch
from torch import Tensor

from mmspec_video.models.token_world import TokenWorldModel

OFFSETS = ((-1, 0, 1), (-1, 0, 0), (-1, 0, 2), (0, -1, 1))
"""Frames, rows and columns from a cell to where a head of the first block looks; the cell to be predicted is the next
one, so the first looks at it a frame ago, two at its neighbours then, and one above it."""
SHARPNESS = 6.0
"""Of these heads, as a logit of each fast pair: a neighbour of where they look gets about a twentieth of the weight."""


@torch.no_grad()
def begin(model: TokenWorldModel, entries: Tensor) -> None:
    """Set what is known before any training.

    Args:
        model: Fresh; with at least as many heads as there are offsets.
        entries: Of the codebook: `[code, width]`, unit vectors.
    """
    alike(model, entries)
    looking(model)


def alike(model: TokenWorldModel, entries: Tensor) -> None:
    """Codes whose entries are near each other begin alike, when they are read and when they are predicted.

    What a frame leaves open is mostly which of many codes that look the same.
    """
    for weights in (model.tok_embeddings.weight, model.output.weight):
        own = weights[: len(entries)]
        own.copy_(own / 4 + entries @ torch.randn(entries.shape[1], own.shape[1]) * own.shape[1] ** -0.5)


def looking(model: TokenWorldModel) -> None:
    """Some heads of the first block begin by looking at a place, whatever is there.

    All units get one vector in common, whose queries and keys differ by the turn of an offset only.
    """
    dim, attention = model.config.dim, model.layers[0].attention
    common = torch.nn.functional.normalize(torch.randn(dim), dim=0)
    model.tok_embeddings.weight += common
    size = dim**0.5 / model.tok_embeddings.weight.norm(dim=-1).mean()  # of the common vector, behind the norm
    turns = torch.stack([_angles(model, *axis) for axis in ((1, 0, 0), (0, 1, 0), (0, 0, 1))])
    fast = torch.cat([axis.topk(2).indices for axis in turns])
    strength = torch.zeros(attention.width // 2)
    strength[fast] = (SHARPNESS * attention.width**0.5) ** 0.5
    weights = attention.wqkv.weight.unflatten(0, (-1, attention.width))
    for head, offset in enumerate(OFFSETS):
        angle = (torch.tensor(offset).float()[:, None] * turns).sum(0)
        query = torch.stack([strength * angle.cos(), strength * angle.sin()], -1).flatten()
        key = torch.stack([strength, torch.zeros_like(strength)], -1).flatten()
        weights[head] = torch.outer(query, common) / size
        weights[attention.heads + head] = torch.outer(key, common) / size


def _angles(model: TokenWorldModel, frame: int, row: int, column: int) -> Tensor:
    """Of all pairs of a head, from the first cell to one that is so far away."""
    first, other = model.rotary[0], model.rotary[frame * model.period + row * model.config.columns + column]
    turned = torch.view_as_complex(other) / torch.view_as_complex(first)
    return turned.angle()
