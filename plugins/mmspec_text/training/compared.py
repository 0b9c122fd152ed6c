"""A head beside its target along a text, whatever the head's kind: what a loss compares at every depth of a draft."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mmspec.core.distributions import take_nodes
from mmspec_text.drafters.heads.dflash.network import DFlashNetwork
from mmspec_text.drafters.heads.eagle.network import EagleNetwork
from mmspec_text.drafters.heads.unroll import along, unrolled_blocks
from mmspec_text.training.batch import Batch


class Compared(NamedTuple):
    """Rows of one depth."""

    scored: Tensor  # `[sequence, row, own ids]`: the head's logits
    p: Tensor  # the target's distribution over the same ids, behind the same units
    # `[sequence, row]` int64: the text's unit there, -1 where the head has no such id or the text has ended
    units: Tensor
    mask: Tensor  # `[sequence, row]` bool: the rows that count


def compared(
    head: Any, features: Tensor, p: Tensor, units: Tensor, batch: Batch, steps: int, anchors: int
) -> Iterator[Compared]:
    """A head beside its target.

    Args:
        head: The head.
        features: `[sequence, unit, width]`: the target's.
        p: `[sequence, unit, own ids]`: the target's distribution behind every unit.
        units: `[sequence, unit]` int64: the text in the head's own ids, -1 where there is none.
        batch: The text.
        steps: Units of a draft.
        anchors: Most roots of a sequence, for a head that scores a block; others are compared behind all units.
    """
    following = torch.nn.functional.pad(units[:, 1:], (0, 1), value=-1)
    if isinstance(head, DFlashNetwork):
        roots, drawn = drawn_roots(batch, anchors)
        scores, last = unrolled_blocks(head, features, batch.ids, roots), units.shape[1] - 1
        for depth in range(steps):
            inside, place = drawn & (roots + depth <= last), (roots + depth).clamp(max=last)
            mask = inside & batch.counted.gather(1, place)
            yield Compared(scores[:, :, depth], take_nodes(p, place), following.gather(1, place), mask)
        return
    for depth, scored in enumerate(along(head, features, batch.ids, steps)):
        here = slice(depth + 1, depth + 1 + scored.shape[1])
        yield Compared(scored, p[:, here], following[:, here], batch.counted[:, here])


def drawn_roots(batch: Batch, most: int) -> tuple[Tensor, Tensor]:
    """Roots among the units that are learnt and followed by one that is, without replacement: a function of the batch.

    Args:
        batch: The text.
        most: Roots of a sequence; fewer where there are not so many.

    Returns:
        Their places, `[sequence, root]` int64; and `[sequence, root]` bool: which of them are roots.
    """
    fit = batch.counted[:, 1:] & batch.counted[:, :-1]
    noise = torch.rand(fit.shape, generator=torch.Generator().manual_seed(batch.seed)).to(fit.device)
    best = torch.where(fit, noise, -1.0).topk(min(most, fit.shape[1]), 1)
    return best.indices + 1, best.values >= 0


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
