"""A head unrolled over a known text: what it would draft behind every unit, several units deep, for training.

Step j of row t reads unit x_{t+1+j} and what the head returned in step j - 1, in step 0 the target's feature of x_t. It
sees the rows up to t of step 0, which had true features, and its own rows of the steps 1 … j: exactly what it sees when
it drafts x_{t+2}, x_{t+3}, … behind the root x_{t+1}, and is told the text's units. ("Training-time test" of EAGLE-3,
arXiv 2503.01840, § 3.1.) The head's own network runs, over keys that are kept for the gradient and not in a cache.

A head that steps along paths (`walked`): step j of row t is the draft of x_{t+2+j} behind the root x_{t+1}, if the head
is told the units between. All rows are roots of their own, so that they are one batch of single nodes.

A head of Falcon scores the rows of a block at once (`in_blocks`, as it learns; `blockwise`, as it drafts).

A DFlash head (`block_states`): the blocks behind many roots in one pass. Rows of a block see the features of the
units before their own root, as in a draft, and their own block. The features pass through no layer, so that their keys
and values are the same for all blocks. What fills blocks with a causal language model's own pass is a `FillsBlocks`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from mmspec.hosts.masks import PassGeometry
from mmspec_text.drafters.heads.dflash.network import DFlashNetwork
from mmspec_text.drafters.heads.eagle.network import EagleNetwork
from mmspec_text.drafters.heads.head import Head
from mmspec_text.drafters.heads.pathwise.head import PathHead, PrefixHead

AT_ONCE = 64
"""Blocks that are scored in one pass."""


@runtime_checkable
class FillsBlocks(Protocol):
    """The part that scores all units of a draft in one pass of a causal language model."""

    share: float  # in training, of the roots behind which a unit is drafted, those where the next one is, too

    def drafted(self, units: Tensor, roots: Tensor, kept: Sequence[int]) -> list[Tensor]:
        """Its output behind roots of a text; see `drafted_blocks`."""


class Filled(NamedTuple):
    """The output of masks behind roots of a text, by depth, `[batch, root, …]` each."""

    states: list[Tensor]  # behind the target's final norm
    plain: list[Tensor]  # what the target's output layer scores there
    scored: list[Tensor]  # what the sampler scores, told the text's units


@runtime_checkable
class Samples(FillsBlocks, Protocol):
    """A part that fills blocks with states, from which a sampler scores."""

    def filled(self, units: Tensor, roots: Tensor, kept: Sequence[int]) -> Filled:
        """Its output behind roots of a text; see `drafted_blocks`."""


class _Kept:
    """Keys and values of one layer, of all steps so far."""

    def __init__(self) -> None:
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        self._keys.append(key)
        self._values.append(value)
        return torch.cat(self._keys, 2), torch.cat(self._values, 2)


class KeptSlots:
    """The part of a cache that a head's network reads."""

    def __init__(self, depth: int) -> None:
        self.layers = [_Kept() for _ in range(depth)]

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        return self.layers[layer].update(key, value)


def along(head: Any, features: Tensor, units: Tensor, steps: int) -> Iterator[Tensor]:
    """The drafts of a head of any kind along a text, told its units: for every step the logits of the unit
    at `row + 2 + step`, `[batch, row, own ids]`, where `unrolled` has states.
    """
    if isinstance(head, DFlashNetwork | FillsBlocks):  # some blocks at a time: each of their rows sees the whole text
        roots = torch.arange(1, rows_of(units, steps) + 1, device=units.device).expand(len(units), -1)
        some = roots.split(AT_ONCE, 1)
        scored = [drafted_blocks(head, features, units, each, [each.shape[1]] * steps) for each in some]
        yield from (torch.cat(level, 1) for level in zip(*scored, strict=True))
    elif isinstance(head, PathHead):
        yield from walked(head, features, units, steps)
    elif isinstance(head, EagleNetwork) and head.architecture.block > 1:
        yield from blockwise(head, features, units, steps)
    else:
        scores = head.scored if isinstance(head, EagleNetwork) else head.logits
        for states in unrolled(head, features, units, steps):
            yield scores(states)


def unrolled(head: Head, features: Tensor, units: Tensor, steps: int) -> Iterator[Tensor]:
    """Unroll a head over a text, `units [batch, unit]` with the target's features `[batch, unit, width]` of all of
    them.

    For every step there are the states that the head returns, `[batch, row, hidden]`, from which it scores the unit at
    `row + 2 + step`, in `unit - steps` rows.
    """
    rows = rows_of(units, steps)
    slots: Any = KeptSlots(head.depth)
    states = head.taken_in(features[:, :rows])
    for step in range(steps):
        geometry = _geometry(rows, step, units.device)
        states = head.passed(units[:, step + 1 : step + 1 + rows], states, slots, geometry)
        yield states


def rows_of(units: Tensor, steps: int) -> int:
    """The rows of a text `[batch, unit]` behind which a draft of so many units can be compared with it."""
    rows = units.shape[1] - steps
    if rows < 1:
        raise ValueError(f"a text of {units.shape[1]} units has no row that is followed by {steps} units and one more")
    return rows


def _geometry(rows: int, step: int, device: torch.device) -> PassGeometry:
    """The rows of one step as nodes of a tree: the text is its trunk, and every row has a branch of its own."""
    place = torch.arange(rows, device=device)
    trunk, own = place[:, None] >= place, torch.eye(rows, dtype=torch.bool, device=device)
    ancestor = torch.cat([trunk, *[own] * step], 1)[None]
    depth = torch.cat([place + later for later in range(step + 1)])[None]
    return PassGeometry(torch.zeros(1, dtype=torch.int64, device=device), ancestor, depth, ancestor.shape[2])


def in_blocks(head: EagleNetwork, features: Tensor, following: Tensor) -> Tensor:
    """The states `[batch, row, hidden]` of a head of Falcon behind rows of a text, in blocks from the first one on.

    Rows have the target's `features [batch, row, width]` and the units that follow; they see the blocks before their
    own, and their own whole.
    """
    place = torch.arange(following.shape[1], device=following.device)
    seen = place // head.architecture.block
    slots: Any = KeptSlots(head.depth)
    ancestor = (seen[:, None] >= seen)[None]
    geometry = PassGeometry(torch.zeros_like(place[:1]), ancestor, place[None], len(place))
    return head.passed(following, head.taken_in(features), slots, geometry)


def blockwise(head: EagleNetwork, features: Tensor, units: Tensor, steps: int) -> Iterator[Tensor]:
    """The drafts of a head of Falcon along a text, as `along` has them: each row ends a block, which the blocks of its
    draft follow. Rows with fewer than a block's before them score all units alike.
    """
    block, rows = head.architecture.block, rows_of(units, steps)
    place = torch.arange(rows, device=units.device)
    slots: Any = KeptSlots(head.depth)
    head.passed(units[:, 1 : rows + 1], head.taken_in(features[:, :rows]), slots, _geometry(rows, 0, units.device))
    first, inside = (place - block + 1).clamp(min=0), torch.arange(block, device=units.device)
    known = (place < first[:, None]).repeat_interleave(block, 0)  # [node, row]: what a block's rows see of the text
    own = torch.eye(rows, dtype=torch.bool, device=units.device).repeat_interleave(block, 0).repeat_interleave(block, 1)
    states, depth = head.taken_in(features[:, (first[:, None] + inside).flatten()]), place
    for step in range(steps):
        level, at = divmod(step, block)
        if not at:
            here = (first[:, None] + block * level + inside).flatten()
            depth, ancestor = torch.cat([depth, here]), torch.cat([known, *[own] * (level + 1)], 1)
            geometry = PassGeometry(torch.zeros_like(place[:1]), ancestor[None], depth[None], len(depth))
            states = head.passed(units[:, here + 1], states, slots, geometry)
        scored = head.scored(states.unflatten(1, (rows, block))[:, :, at])
        yield scored.masked_fill((place < block - 1)[:, None], 0)


def walked(head: PathHead, features: Tensor, units: Tensor, steps: int) -> Iterator[Tensor]:
    """Step along a text as in `unrolled`, at most the head's units: for every step logits `[batch, row, vocab]`."""
    batch, rows = len(units), rows_of(units, steps)

    def fed(step: int) -> Tensor:
        return units[:, step + 1 : step + 1 + rows].reshape(-1, 1)

    if isinstance(head, PrefixHead):  # reads the features before each root first
        states = next(unrolled(head, features[:, :rows], units[:, : rows + 1], 1)).flatten(0, 1)[:, None]
    else:
        states = head.rooted(features[:, :rows].flatten(0, 1)[:, None], fed(0))
    for step in range(steps):
        if step:
            states = head.followed(states, fed(step), step)
        yield head.logits(states, step)[:, 0].unflatten(0, (batch, rows))


def drafted_blocks(
    head: DFlashNetwork | FillsBlocks, features: Tensor, units: Tensor, roots: Tensor, kept: Sequence[int]
) -> list[Tensor]:
    """For every depth the logits `[batch, root, own ids]` of the unit at `root + 1 + depth`.

    `roots [batch, root]` int64 are places from 1; `kept` counts those of each depth, the first ones. See `unrolled`.
    """
    if isinstance(head, FillsBlocks):
        return head.drafted(units, roots, kept)
    scored = head.scored(block_states(head, features, units, roots))  # without a Markov head
    return [scored[:, :count, depth] for depth, count in enumerate(kept)]


def block_states(head: DFlashNetwork, features: Tensor, units: Tensor, roots: Tensor) -> Tensor:
    """The states `[batch, root, depth, hidden]` of the blocks behind roots of a text.

    `roots [batch, root]` int64 are their places; the other arguments are as in `unrolled`.
    """
    block, known = head.architecture.block, units.shape[1]
    slots: Any = KeptSlots(head.depth)
    place = torch.arange(known, device=units.device)
    head.absorb(features, slots, place[None])
    end = roots.repeat_interleave(block, 1)[:, :, None]  # the root of every row
    own = torch.arange(roots.shape[1] * block, device=units.device)
    depth = torch.cat([place.expand(len(units), -1), end[:, :, 0] + own % block], 1)
    same = own[:, None] // block == own // block
    geometry = [_block_geometry(place < end, inside, depth) for inside in (same, same & (own[:, None] >= own))]
    return head.blocks(units.gather(1, roots), geometry, end[:, None], slots)


def _block_geometry(before: Tensor, inside: Tensor, depth: Tensor) -> PassGeometry:
    """Rows that see the known units `before` their roots, `[batch, row, unit]`, and the rows `inside`, `[row, row]`."""
    ancestor = torch.cat([before, inside.expand(len(before), -1, -1)], 2)
    return PassGeometry(torch.zeros_like(depth[:, 0]), ancestor, depth, depth.shape[1])
