"""A head's cache: committed rows, which were computed from the target's features, and the scratch of one draft.

A draft's rows are computed from the head's own states, which are only a guess of the target's. Keeping them costs 8 to
15 % of the acceptance length, so that no drafted row is ever committed: after every verification the accepted units are
fed again with their true features. The root's row is the last of these. It is node 0 of the draft that follows, and it
is committed when the next rows arrive.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from mmspec.core.distributions import take_nodes
from mmspec.core.live import Live
from mmspec.core.state import State
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, TargetOutput
from mmspec.hosts.masks import PassGeometry
from mmspec.hosts.slot_cache import SlotCache
from mmspec_text.drafters.heads.head import Head, ScoresPart
from mmspec_text.drafters.heads.rows import Rows

CHUNK = 512
"""Rows of a pass over a prompt."""
Feed = Callable[[Draft, int], TargetOutput]
"""The `feed` of `mmspec.core.drafters.growing.grown`."""


@dataclass(frozen=True)
class Unknown:
    """Rows of units that are not known, which a head reads behind the root in the root's pass."""

    state: Tensor  # `[hidden]`: the state of such a row
    unit: int
    rows: int  # how many there are


class HeadCache:
    """The cache of one call.

    `most` counts the known units of the longest row at the end of the call and the nodes of one draft; `halves` the
    physical rows of each row: 2 under guidance, where a feature holds both halves side by side.
    """

    def __init__(
        self,
        head: Head,
        rows: int,
        most: int,
        device: torch.device,
        halves: int = 1,
        slots: SlotCache | None = None,
    ) -> None:
        self.head, self.halves, self.most, rows = head, halves, most, rows * halves
        # of all physical rows, one half behind the other; a row's length is that of its committed rows, not the root's
        self.slots = SlotCache(empty_layers(head.depth), rows, most + CHUNK, device) if slots is None else slots
        # [physical, node, hidden]: what the head returned at the nodes in the scratch
        self.states = torch.empty(rows, 0, 0, device=device)
        # [physical]: node 0 of the scratch is a row that is not committed yet
        self.open = torch.zeros(rows, dtype=torch.bool, device=device)

    def like(self, head: Head, slots: SlotCache, levels: int) -> Self:
        """An empty cache of this kind over other slots, for drafts of so many levels."""
        return type(self)(head, len(self.open) // self.halves, self.most, self.open.device, self.halves, slots)

    def opened(self, root: Tensor) -> tuple[TargetOutput, Feed]:
        """The beginning of a draft behind roots `[batch]`: the output there, one node, and a scorer of more."""
        return self.at_root(), self.grow

    def catch_up(self, rows: Rows, known: State | Live) -> None:
        """`read` rows, the last of which has the root's unit."""
        self.read(rows, rows.units(known))

    @torch.no_grad()
    def read(self, rows: Rows, units: Tensor, unknown: Unknown | None = None) -> None:
        """Read true rows; the last of them, whose unit is the root, becomes node 0 of the scratch.

        `units` are `[batch, column]` int64. Rows that are `unknown` become further nodes of the scratch, a chain.
        """
        rows, units = rows.apart(self.halves), self._physical(units)
        columns = rows.features.shape[1]
        none = self.slots.length[:, None][:, :0]
        for first in range(0, columns, CHUNK):
            size = min(CHUNK, columns - first)
            last = first + size == columns  # all rows of the batch end there
            more = unknown.rows if unknown is not None and last else 0
            place, count = rows.piece(first, size)
            closing = self.open & (rows.count > 0)
            self.slots.commit(none, closing.long())
            chain = TreeIndex.chain(size + more, place.device)
            states, fed = self.head.taken_in(take_nodes(rows.features, place)), take_nodes(units, place)
            if unknown is not None and more:
                fed = behind(fed, count, torch.full_like(fed[:, :1], unknown.unit), more)
                states = behind(states, count, unknown.state.expand_as(states[:, :1]), more)
            result = self._passed(fed, states, chain, 0)
            self.slots.commit(chain_path(size, len(count), place.device), (count - 1).clamp(min=0))
            order = torch.arange(more + 1, device=place.device)
            if last:
                self.states = take_nodes(result, (count - 1).clamp(min=0)[:, None] + order)
            self.open = (self.open & ~closing) | (count > 0)

    @torch.no_grad()
    def at_root(self) -> TargetOutput:
        """The output at node 0 of the scratch."""
        return self._output(self.states[:, :1])

    @torch.no_grad()
    def grow(self, draft: Draft, first: int) -> TargetOutput:
        """The output at the nodes of a rooted draft from `first` on; those before are in the scratch."""
        index, units = draft.index.repeated(self.halves), self._physical(draft.units)
        result = self._passed(units[:, first:], take_nodes(self.states, index.parent[:, first:]), index, first)
        self.states = torch.cat([self.states[:, :first], result], 1)
        return self._output(result)

    def _physical(self, units: Tensor) -> Tensor:
        return units if self.halves == 1 else units.repeat(self.halves, 1)

    def _output(self, states: Tensor) -> TargetOutput:
        head: Any = self.head
        part = head.part() if isinstance(head, ScoresPart) else None
        given, *null = (head.logits(states) if part is None else head.scored(states)).chunk(self.halves)
        return TargetOutput(logits=given, null=null[0] if null else None, part=part)

    def _passed(self, units: Tensor, states: Tensor, index: TreeIndex, first: int) -> Tensor:
        slots = self.slots
        slots.open(first, units.shape[1])
        alone = units.shape[1] == 1 and index.is_chain and slots.start is not None
        geometry = PassGeometry(slots.length, index.ancestor[:, first:], index.depth, slots.visible, alone)
        return self.head.passed(units, states, slots, geometry)


def empty_layers(depth: int) -> list[DynamicLayer]:
    """Empty layers of a cache for a head of so many."""
    return [DynamicLayer() for _ in range(depth)]


def chain_path(nodes: int, rows: int, device: torch.device) -> Tensor:
    """The path through a chain of so many nodes, the first one left out: `[batch, nodes - 1]`."""
    return torch.arange(1, nodes, device=device).expand(rows, -1)


def behind(values: Tensor, count: Tensor, other: Tensor, more: int) -> Tensor:
    """The first `count [batch]` of `values [batch, row, …]`, then `other [batch, 1, …]` up to `more` further rows."""
    wide = torch.cat([values, other.expand(-1, more, *other.shape[2:])], 1)
    known = torch.arange(wide.shape[1], device=count.device) < count[:, None]
    return torch.where(known.reshape(*known.shape, *(1,) * (values.dim() - 2)), wide, other)
