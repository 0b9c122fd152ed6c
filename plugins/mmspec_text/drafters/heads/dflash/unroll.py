"""A DFlash head along a known text: the blocks behind many roots in one pass, for training (arXiv 2602.06036).

Rows of a block see the features of the units before their own root, as in a draft, and their own block. The features
pass through no layer, so that their keys and values are the same for all blocks.
"""

from typing import Any

import torch
from torch import Tensor

from mmspec.hosts.masks import PassGeometry
from mmspec_text.drafters.heads.dflash.network import DFlashNetwork
from mmspec_text.drafters.heads.unroll import KeptSlots


def unrolled_blocks(head: DFlashNetwork, features: Tensor, units: Tensor, roots: Tensor) -> Tensor:
    """What a head says behind roots of a text.

    Args:
        head: The head; one with a Markov head scores as if it had none.
        features: `[batch, unit, width]`: the target's features of all units.
        units: `[batch, unit]` int64.
        roots: `[batch, root]` int64: the places of the roots.

    Returns:
        Logits over the head's own ids, `[batch, root, depth, drafted]`: at depth d of the unit at `root + 1 + d`.
    """
    block, known = head.architecture.block, units.shape[1]
    slots: Any = KeptSlots(head.depth)
    place = torch.arange(known, device=units.device)
    head.absorb(features, slots, place[None])
    end = roots.repeat_interleave(block, 1)[:, :, None]  # the root of every row
    own = torch.arange(roots.shape[1] * block, device=units.device)
    depth = torch.cat([place.expand(len(units), -1), end[:, :, 0] + own % block], 1)
    same = own[:, None] // block == own // block
    geometry = [_geometry(place < end, inside, depth) for inside in (same, same & (own[:, None] >= own))]
    return head.scored(head.blocks(units.gather(1, roots), geometry, end[:, None], slots))


def _geometry(before: Tensor, inside: Tensor, depth: Tensor) -> PassGeometry:
    """Rows that see the known units `before` their roots, `[batch, row, unit]`, and the rows `inside`, `[row, row]`."""
    ancestor = torch.cat([before, inside.expand(len(before), -1, -1)], 2)
    return PassGeometry(torch.zeros_like(depth[:, 0]), ancestor, depth, depth.shape[1])
