"""Heads over a text in one pass through the cache that drafts use, to compare with forwards written out."""

from torch import Tensor

from mmspec.core.tree import TreeIndex
from mmspec.hosts.masks import PassGeometry
from mmspec_text.drafters.heads.cache import HeadCache
from mmspec_text.drafters.heads.eagle.network import EagleNetwork
from mmspec_text.drafters.heads.head import Head


def cached_states(head: Head, features: Tensor, units: Tensor) -> Tensor:
    """The states of a head `[batch, row, hidden]` at rows with true features `[batch, row, width]` and units."""
    rows, columns = units.shape
    slots = HeadCache(head, rows, columns, units.device).slots
    slots.open(0, columns)
    chain = TreeIndex.chain(columns, units.device)
    geometry = PassGeometry(slots.length, chain.ancestor, chain.depth, slots.visible)
    return head.passed(units, head.taken_in(features), slots, geometry)


def teacher_forced(head: Head, features: Tensor, units: Tensor) -> Tensor:
    """Logits `[batch, row, vocab]` of such rows."""
    return head.logits(cached_states(head, features, units))


def second_guesses(head: EagleNetwork, features: Tensor, units: Tensor) -> Tensor:
    """Logits `[batch, row, vocab]` behind each row and one more unit, whose state is the one that the head feeds back.

    `units` are those of the rows, and the one behind the last: `[batch, row + 1]`.
    """
    batch, rows = features.shape[:2]
    slots = HeadCache(head, batch, 2 * rows, units.device).slots
    # Node t of the first half is row t; node rows + t is its child, which sees the rows up to t and itself.
    index = TreeIndex.static([*range(-1, rows - 1), *range(rows)], units.device)
    states = head.taken_in(features)
    for first, half in ((0, units[:, :-1]), (rows, units[:, 1:])):
        slots.open(first, rows)
        seen = index.ancestor[:, first : first + rows, : first + rows]
        geometry = PassGeometry(slots.length, seen, index.depth[:, : first + rows], slots.visible)
        states = head.passed(half, states, slots, geometry)
    return head.logits(states)
