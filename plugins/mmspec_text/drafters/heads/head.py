"""The protocol of a head that drafts one unit after another; `drafter.py` does the rest.

Row t of a head has the target's feature of unit x_t and the embedding of x_{t+1}; it predicts x_{t+2}. Behind the known
units there is no feature: the head's own state takes its place.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from mmspec.core.types import Part
from mmspec.hosts.masks import PassGeometry
from mmspec.hosts.slot_cache import SlotCache


class Borrowing(Protocol):
    """A head, a module of torch, that calls modules of its target."""

    @property
    def borrowed(self) -> Sequence[nn.Module]:
        """The target's modules that it may call."""


class Head(Borrowing, Protocol):
    """A recurrent head."""

    depth: int  # number of attention layers
    vocab: int  # number of unit ids of its logits

    def taken_in(self, features: Tensor) -> Tensor:
        """States `[batch, row, hidden]` of the target's features `[batch, row, width]`."""

    def passed(self, units: Tensor, states: Tensor, slots: SlotCache, geometry: PassGeometry) -> Tensor:
        """The states of rows that are fed back, from which `logits` are computed: `[batch, row, hidden]`.

        `units [batch, row]` are one ahead of `states [batch, row, hidden]`: what features became, or what the head
        returned at the row's parent. `slots` is the cache, opened for these rows, one layer for each of the head's.
        """

    def logits(self, states: Tensor) -> Tensor:
        """Logits `[batch, row, vocab]` of the next unit, -inf where the head has no id, of states it returned."""


@runtime_checkable
class ScoresPart(Protocol):
    """A head that may score a part of the ids, whose logits are then better left as they are."""

    def part(self) -> Part | None:
        """The ids that it scores; None: all."""

    def scored(self, states: Tensor) -> Tensor:
        """Logits `[batch, row, size]` of these."""
