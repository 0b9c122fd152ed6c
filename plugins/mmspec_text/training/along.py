"""A head along a text, whatever its kind: what it would draft behind every unit, and over which ids."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from mmspec_text.drafters.heads.dflash.network import DFlashNetwork
from mmspec_text.drafters.heads.eagle.network import EagleNetwork
from mmspec_text.drafters.heads.pathwise.head import PathHead
from mmspec_text.drafters.heads.unroll import rows_of, unrolled, unrolled_blocks, walked

AT_ONCE = 64
"""Blocks that are scored in one pass."""


def along(head: Any, features: Tensor, units: Tensor, steps: int) -> Iterator[Tensor]:
    """What a head drafts along a text, told its units; arguments and errors as in `unrolled`.

    Yields:
        For every step `[batch, row, own ids]`: the logits of the unit at `row + 2 + step`.
    """
    if isinstance(head, DFlashNetwork):
        yield from _behind_all(head, features, units, steps)
        return
    if isinstance(head, PathHead):
        yield from walked(head, features, units, steps)
        return
    scores = head.scored if isinstance(head, EagleNetwork) else head.logits
    for states in unrolled(head, features, units, steps):
        yield scores(states)


def _behind_all(head: DFlashNetwork, features: Tensor, units: Tensor, steps: int) -> Iterator[Tensor]:
    """Blocks behind every unit but the first; some at a time, because each of their rows sees the whole text."""
    roots = torch.arange(1, rows_of(units, steps) + 1, device=units.device).expand(len(units), -1)
    scored = [unrolled_blocks(head, features, units, some)[:, :, :steps] for some in roots.split(AT_ONCE, 1)]
    yield from torch.cat(scored, 1).unbind(2)


def own_ids(head: Any) -> Tensor | None:
    """The target's ids that a head scores, ascending; None: all of them."""
    return head.ids if isinstance(head, EagleNetwork) else None


def over_own_ids(head: Any, p: Tensor, units: Tensor) -> tuple[Tensor, Tensor]:
    """A distribution `[…, vocab]` and units `[…]` over the ids that a head scores; units without one are -1."""
    ids = own_ids(head)
    if ids is None:
        return p, units
    place = units.new_full((p.shape[-1],), -1).index_copy(0, ids, torch.arange(len(ids), device=units.device))
    return p[..., ids], place[units]
