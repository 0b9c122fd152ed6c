"""Who sees whom: committed units, and a node's ancestors."""

import torch
from torch import Tensor


def tree_mask(length: Tensor, ancestor: Tensor, visible: int) -> Tensor:
    """Mask of a pass over tree nodes that were written behind the committed units.

    Args:
        length: `[batch]` int64 committed units.
        ancestor: `[batch, node, node]` bool (or `[1, …]`): `[b, i, j]`: j is i or an ancestor of i.
        visible: Slots that attention covers.

    Returns:
        `[batch, 1, node, visible]` bool, True where a node may look. No row is empty: a node sees itself.
    """
    rows, nodes = len(length), ancestor.shape[1]
    slot = torch.arange(visible, device=length.device)
    relative = slot - length[:, None]  # [batch, slot]: node id of the slot, where it holds one
    inside = (relative >= 0) & (relative < nodes)
    at = relative.clamp(0, nodes - 1)[:, None].expand(-1, nodes, -1)
    related = ancestor.expand(rows, -1, -1).gather(2, at)
    return ((slot < length[:, None])[:, None] | (related & inside[:, None]))[:, None]
