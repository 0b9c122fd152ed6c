"""Texts with blanks, and what a pass of an any-order model over them reads.

An any-order (any-subset autoregressive) model has a distribution of the token at one position given those at any
others. A call fills the blanks of a text in an order σ, one rank after the other, so the output of a decoder is the
filled-in tokens by rank. The core counts ranks only; the map from ranks to positions is in the target's cache, here.

Of any two positions, one is seen from the other if its rank is lower. Known tokens have rank 0 and see one another;
the blank that is filled r-th has rank r. In a pass that scores several blanks as if each were the next one, those that
are not filled yet have one rank, so that none of them sees another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from mmspec.core.distributions import take_nodes
from mmspec.core.state import State
from mmspec.core.transfer import on_device
from mmspec.core.types import Draft, Prefill, TargetOutput

FILLER = 0  # the id with which a row goes on that has no blank left, if nobody ends it (`Infill.end`)
_FAR = 1 << 30


@dataclass(frozen=True)
class Infill:
    """The prompt of an any-order target.

    Example:
        `Infill([[5, None, None, 9]], orders=[[2, 1]])`
    """

    rows: Sequence[Sequence[int | None]]  # the ids of every text, None in its blanks
    # For every text the positions of its blanks, in the order in which they are filled; None: from left to right
    orders: Sequence[Sequence[int]] | None = None

    def __post_init__(self) -> None:
        if not self.rows:
            raise ValueError("there is no text to fill in")
        if self.orders is not None and len(self.orders) != len(self.rows):
            raise ValueError(f"there are {len(self.rows)} texts and {len(self.orders)} orders; give one for each")
        for row, (text, order) in enumerate(zip(self.rows, self.order, strict=True)):
            blanks = _blanks(text)
            if not blanks:
                raise ValueError(f"text {row} has no blank to fill in; a blank is None in the place of an id")
            if len(blanks) == len(text):
                raise ValueError(f"text {row} has no known token; an any-order model needs one to begin with")
            if sorted(order) != blanks:
                raise ValueError(f"order {row}: {_mistake(order, blanks)}; its blanks are {blanks}, each once")

    @cached_property
    def order(self) -> list[list[int]]:
        """The positions of the blanks of every text, in the order in which they are filled."""
        return [_blanks(text) for text in self.rows] if self.orders is None else [list(order) for order in self.orders]

    @property
    def limit(self) -> int:
        """Most blanks of a text: the number of units for `Decoder.generate`."""
        return max(len(order) for order in self.order)

    def end(self, state: State) -> None:
        """End the rows whose blanks are filled; `on_step` of `Decoder.generate`, if texts have several numbers."""
        for row, order in enumerate(self.order):
            if not state.host.done[row] and state.host.emitted[row] >= len(order):
                state.stop(row, len(order))

    def filled(self, units: Sequence[Tensor]) -> list[list[int]]:
        """The texts without blanks, given what a decoder emitted, `[emitted]` int64 per row."""
        texts = []
        for text, order, emitted in zip(self.rows, self.order, units, strict=True):
            new = dict(zip(order, emitted.tolist(), strict=False))
            texts.append([new[place] if token is None else token for place, token in enumerate(text)])
        return texts


@dataclass(frozen=True)
class View:
    """The units that one pass reads, and the positions that it scores."""

    ids: Tensor  # `[batch, length]` int64; what stands at a position that nobody sees is arbitrary
    # `[batch, length]` int64: a position is seen from positions of higher rank; the ones of rank 0 see one another
    rank: Tensor
    asked: Tensor  # `[batch, query]` int64: the positions to be scored
    beyond: Tensor  # `[batch, query]` bool: queries for which the row has no blank left

    @property
    def seen(self) -> Tensor:
        """The positions that each query sees: `[batch, query, length]` bool."""
        return self.rank[:, None] < self.rank.gather(1, self.asked)[..., None]

    @property
    def hidden(self) -> Tensor:
        """`[batch, length, length]` bool: whether position i must not see position j; XLNet's `perm_mask`."""
        return (self.rank[:, :, None] <= self.rank[:, None]) & (self.rank > 0)[:, None]

    def output(self, logits: Tensor, mask: int | None = None) -> TargetOutput:
        """The output of a pass, without the id `mask`, which no text has and whose probability goes to all others."""
        ids = torch.arange(logits.shape[-1], device=logits.device)
        beyond = self.beyond[..., None]
        never = beyond & (ids != FILLER) if mask is None else torch.where(beyond, ids != FILLER, ids == mask)
        return TargetOutput(logits=logits.masked_fill(never, -torch.inf).masked_fill(beyond & (ids == FILLER), 0.0))


@dataclass
class Filling:
    """The cache of a call: the texts as far as they are filled."""

    # `[batch, length + 1]` int64: known and committed tokens at their positions; the last column is scratch
    ids: Tensor
    place: Tensor  # `[batch, blank + 1]` int64: the position of every rank's blank; `length` behind the last one
    rank: Tensor  # `[batch, length]` int64: 0 for known tokens, 1 … for blanks
    blanks: Tensor  # `[batch]` int64: how many there are
    count: Tensor  # `[batch]` int64: how many are committed
    draft: Draft | None = None  # the draft of the last pass

    @classmethod
    def begin(cls, inputs: Infill, device: torch.device) -> "Filling":
        """Nothing is filled yet."""
        order, most, length = inputs.order, inputs.limit, max(map(len, inputs.rows))
        blank, pad = -1, -2
        rows = [[*(blank if t is None else t for t in row), *[pad] * (length + 1 - len(row))] for row in inputs.rows]
        ids = on_device(rows, device)
        place = on_device([[*each, *[length] * (most + 1 - len(each))] for each in order], device)
        by_order = torch.arange(1, most + 2, device=device).expand_as(place)
        rank = torch.where(ids < 0, _FAR, 0).scatter(1, place, by_order)[:, :length]
        blanks = on_device([len(each) for each in order], device)
        return cls(ids.clamp(min=0), place, rank, blanks, torch.zeros_like(blanks))

    def prefill(self, inputs: Infill, output: TargetOutput) -> Prefill:
        """The beginning of a call: the known tokens are the prompt, `[batch, known]`, from left to right."""
        known = [[token for token in row if token is not None] for row in inputs.rows]
        most, device = max(map(len, known)), self.ids.device
        prompt = on_device([[*[FILLER] * (most - len(row)), *row] for row in known], device)
        return Prefill(self, output, prompt, on_device([most - len(row) for row in known], device))

    def of_draft(self, draft: Draft) -> View:
        """Every node of a rooted chain asks for the blank behind its own, and sees the nodes up to itself."""
        self.draft = draft
        return self._view(draft.units, self.rank, 1, draft.nodes)

    def ahead(self, units: Tensor, queries: int) -> View:
        """The next blanks behind `units [batch, n]`, which follow the committed ones; each as if it were the next."""
        filled = self.count[:, None] + units.shape[1]
        return self._view(units, torch.where(self.rank <= filled, self.rank, _FAR), units.shape[1], queries)

    @property
    def left(self) -> Tensor:
        """Blanks that are not committed: `[batch]` int64."""
        return (self.blanks - self.count).clamp(min=0)

    def text(self, units: Tensor) -> tuple[Tensor, Tensor]:
        """The texts with `units [batch, n]`, which follow the committed ones: ids, and which of them are there, both
        `[batch, length]`; what stands elsewhere is arbitrary.
        """
        ids = self.ids.scatter(1, self._at(0, units.shape[1]), units)[:, : self._scratch]
        return ids, self.rank <= self.count[:, None] + units.shape[1]

    def behind(self, units: int, queries: int) -> Tensor:
        """The positions of the next blanks behind so many units that follow the committed ones: `[batch, queries]`."""
        return self._at(units, queries).clamp(max=self._scratch - 1)

    def commit(self, path: Tensor, count: Tensor) -> None:
        """As `Target.commit`."""
        assert self.draft is not None
        nodes = torch.nn.functional.pad(path.clamp(min=0), (1, 0))
        at = self._at(0, nodes.shape[1])
        kept = torch.arange(nodes.shape[1], device=at.device) < count[:, None]
        self.ids = self.ids.scatter(1, torch.where(kept, at, self._scratch), take_nodes(self.draft.units, nodes))
        self.count = self.count + count

    def truncate(self, length: Tensor) -> None:
        """As `Target.truncate`."""
        self.count = length - (self.rank == 0).sum(1)

    @property
    def _scratch(self) -> int:
        return self.ids.shape[1] - 1

    def _at(self, first: int, ranks: int) -> Tensor:
        """Positions of the blanks `first …` behind the committed ones: `[batch, ranks]`."""
        rank = self.count[:, None] + torch.arange(first, first + ranks, device=self.count.device)
        return self.place.gather(1, rank.clamp(max=self.place.shape[1] - 1))

    def _view(self, units: Tensor, rank: Tensor, first: int, queries: int) -> View:
        ids = self.ids.scatter(1, self._at(0, units.shape[1]), units)[:, : self._scratch]
        asked = self._at(first, queries)
        beyond = asked == self._scratch
        return View(ids, rank, asked.clamp(max=self._scratch - 1), beyond)


@runtime_checkable
class AnyOrder(Protocol):
    """A target that scores several blanks in one pass, each as if it were the next one."""

    def ahead(self, cache: Filling, root: Tensor, units: int) -> TargetOutput:
        """Scores of the next `units` units behind `root [batch]`, of which none sees another; nothing is committed."""

    def left(self, cache: Filling) -> Tensor:
        """Blanks that are not committed: `[batch]` int64."""


def _blanks(text: Sequence[int | None]) -> list[int]:
    return [place for place, token in enumerate(text) if token is None]


def _mistake(order: Sequence[Any], blanks: Sequence[int]) -> str:
    """The fault of an order."""
    known = [place for place in order if place not in blanks]
    twice = sorted({place for place in order if list(order).count(place) > 1})
    if known:
        return f"{known} are no blanks"
    return f"{twice} come more than once" if twice else f"{sorted(set(blanks) - set(order))} are missing"
