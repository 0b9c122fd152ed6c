"""The states of a head's roots over a whole text, in one pass."""

from torch import Tensor

from mmspec.core.tree import TreeIndex
from mmspec.hosts.masks import PassGeometry
from mmspec_text.drafters.heads.cache import HeadCache
from mmspec_text.drafters.heads.pathwise.head import PathHead, PrefixHead


def states_of(head: PathHead | PrefixHead, features: Tensor, units: Tensor) -> Tensor:
    """States `[batch, row, size]` behind every unit of a text as the root.

    Args:
        head: The head.
        features: `[batch, row, width]`: the target's, of the unit before.
        units: `[batch, row]` int64.
    """
    if not isinstance(head, PrefixHead):
        return head.rooted(features, units)
    rows, columns = units.shape
    slots = HeadCache(head, rows, columns, units.device).slots
    slots.open(0, columns)
    chain = TreeIndex.chain(columns, units.device)
    geometry = PassGeometry(slots.length, chain.ancestor, chain.depth, slots.visible)
    return head.passed(units, head.taken_in(features), slots, geometry)
