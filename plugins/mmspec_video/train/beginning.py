"""How a token model begins: knowing which codes look alike, where the cell to be predicted was a frame ago, and which
action leads to it.

Nothing here is part of the architecture: it is what random weights would have to find first. Players mostly go on with
what they do, so frames before tell nearly as much as the action: a model that did not begin by looking at it had not
found it after 2,900 steps.
"""

import torch
from torch import Tensor

from mmspec_video.models.token_world import TokenWorldModel

OFFSETS = ((-1, 0, 1), (-1, 0, 0), (-1, 0, 2), (0, -1, 1))
"""Frames, rows and columns from a cell to where a head of the first block looks; the cell to be predicted is the next
one, so the first looks at it a frame ago, two at its neighbours then, and one above it."""
LATEST = (-0.25, 0, 0)
"""The same of the head that looks at actions: the one of a frame ago is nearest, where there is none of this frame."""
SHARPNESS = 20.0
"""Of these heads, as a logit of each fast pair: neighbours of where they look get next to nothing."""


@torch.no_grad()
def begin(model: TokenWorldModel, entries: Tensor) -> None:
    """Set what is known before any training.

    Args:
        model: Fresh; with at least one head more than there are offsets.
        entries: Of the codebook: `[code, width]`, unit vectors.
    """
    alike(model, entries)
    looking(model)


def alike(model: TokenWorldModel, entries: Tensor) -> None:
    """Codes whose entries are near each other begin alike, when they are read and when they are predicted.

    By halves: what a frame leaves open is mostly which of many codes that look the same; but where codes begin nearly
    as one, what tells them apart is learned slowly.
    """
    for weights in (model.tok_embeddings.weight, model.output.weight):
        own = weights[: len(entries)]
        near = entries @ torch.randn(entries.shape[1], own.shape[1]) * own.shape[1] ** -0.5
        own.copy_((own + near) / 2**0.5)


def looking(model: TokenWorldModel) -> None:
    """Some heads of the first block begin by looking at a place, whatever is there, and one at the latest action.

    All units get one vector in common, and actions another one; queries and keys read these, and differ by the turn of
    an offset.
    """
    dim, attention = model.config.dim, model.layers[0].attention
    common, action = torch.linalg.qr(torch.randn(dim, 2)).Q.T
    model.tok_embeddings.weight += common
    model.tok_embeddings.weight[model.config.vocab_size :] += action
    size = dim**0.5 / model.tok_embeddings.weight.norm(dim=-1).mean()  # of either vector, behind the norm
    turns = torch.stack([_angles(model, *axis) for axis in ((1, 0, 0), (0, 1, 0), (0, 0, 1))])
    times, rows, columns = (axis.topk(2).indices for axis in turns)
    everywhere = torch.cat([times, rows, columns])
    heads = [(offset, everywhere, common) for offset in OFFSETS] + [(LATEST, times, action)]
    weights = attention.wqkv.weight.unflatten(0, (-1, attention.width))
    for head, (offset, fast, sought) in enumerate(heads):
        strength = torch.zeros(attention.width // 2)
        strength[fast] = (SHARPNESS * attention.width**0.5) ** 0.5
        angle = (torch.tensor(offset)[:, None] * turns).sum(0)
        query = torch.stack([strength * angle.cos(), strength * angle.sin()], -1).flatten()
        key = torch.stack([strength, torch.zeros_like(strength)], -1).flatten()
        weights[head] = torch.outer(query, common) / size
        weights[attention.heads + head] = torch.outer(key, sought) / size


def _angles(model: TokenWorldModel, frame: int, row: int, column: int) -> Tensor:
    """Of all pairs of a head, from the first cell to one that is so far away."""
    first, other = model.rotary[0], model.rotary[frame * model.period + row * model.config.columns + column]
    turned = torch.view_as_complex(other) / torch.view_as_complex(first)
    return turned.angle()
