"""The loss of a head that is unrolled over a text (EAGLE-3, arXiv 2503.01840, § 3.1).

At every depth of a draft its distribution is compared with what the target says behind the same units.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mmspec.core.distributions import take_nodes
from mmspec.training.losses import DraftLoss, TokenFilter, Top, draft_loss
from mmspec_text.drafters.heads.dflash.network import DFlashNetwork
from mmspec_text.drafters.heads.eagle.network import EagleNetwork
from mmspec_text.drafters.heads.unroll import FillsBlocks, along, drafted_blocks
from mmspec_text.training.batch import Batch
from mmspec_text.training.teacher import Said

LEAST = 0.2
"""The least share of roots behind which a unit is scored, however deep (PARD's r_min)."""


def head_loss(
    said: Callable[[Tensor, Tensor | None], Said],
    loss: DraftLoss,
    steps: int,
    chosen: TokenFilter | None = None,
    anchors: int = 64,
) -> Callable[[nn.Module, Batch], Tensor]:
    """The loss of a head on a batch: the mean over the depths of a draft, by their weights.

    `said` is a teacher's (`Teacher.said`). `steps` counts the units of a draft. `chosen` chooses rows anew at every
    depth, among those that count there. A head that scores a block learns behind at most `anchors` roots of a sequence.
    """
    weights = sum(loss.decay**depth for depth in range(steps))

    def of(model: nn.Module, batch: Batch) -> Tensor:
        own = own_ids(model)
        features, top = said(batch.ids, own)
        total = top.p.new_zeros(())
        given = (features, top, among(own, batch.ids), batch, steps, anchors)
        others = None if chosen is None else compared(chosen.reference, *given)
        for depth, (scored, theirs, following, mask) in enumerate(compared(model, *given)):
            if chosen is not None and others is not None:
                with torch.no_grad():
                    mask = chosen.kept(scored, next(others).scored, theirs, mask)
            total = total + draft_loss(scored, theirs, mask, depth, loss, following)
        return total / weights

    return of


class Compared(NamedTuple):
    """Rows of one depth."""

    scored: Tensor  # `[sequence, row, own ids]`: the head's logits
    p: Top  # of the target's distribution over the same ids, behind the same units
    # `[sequence, row]` int64: the text's unit there, -1 where the head has no such id or the text has ended
    units: Tensor
    mask: Tensor  # `[sequence, row]` bool: the rows that count


def compared(
    head: Any, features: Tensor, p: Top, units: Tensor, batch: Batch, steps: int, anchors: int
) -> Iterator[Compared]:
    """A head beside its target, whose `features` are `[sequence, unit, width]`.

    `p [sequence, unit, k]` is of the target's distribution over the head's ids behind every unit;
    `units [sequence, unit]` are the text in the head's own ids, -1 where there is none. A head that scores a block is
    compared at so many `anchors` of a sequence, others behind all units.
    """
    following = torch.nn.functional.pad(units[:, 1:], (0, 1), value=-1)
    if isinstance(head, DFlashNetwork | FillsBlocks):
        roots, drawn = drawn_roots(batch, anchors)
        kept = kept_roots(roots.shape[1], head.share if isinstance(head, FillsBlocks) else 1.0, steps)
        scores, last = drafted_blocks(head, features, batch.ids, roots, kept), units.shape[1] - 1
        for depth, count in enumerate(kept):
            root = roots[:, :count]
            inside, place = drawn[:, :count] & (root + depth <= last), (root + depth).clamp(max=last)
            mask = inside & batch.counted.gather(1, place)
            near = Top(take_nodes(p.p, place), take_nodes(p.ids, place))
            yield Compared(scores[depth], near, following.gather(1, place), mask)
        return
    for depth, scored in enumerate(along(head, features, batch.ids, steps)):
        here = slice(depth + 1, depth + 1 + scored.shape[1])
        yield Compared(scored, Top(p.p[:, here], p.ids[:, here]), following[:, here], batch.counted[:, here])


def drawn_roots(batch: Batch, most: int) -> tuple[Tensor, Tensor]:
    """Places `[sequence, root]` int64, and which of them are roots: units that are learnt and followed by one that is,
    drawn without replacement as a function of the batch, at most so many of a sequence.
    """
    fit = batch.counted[:, 1:] & batch.counted[:, :-1]
    most = min(most, max(1, int(fit.sum(1).max())))
    noise = torch.rand(fit.shape, generator=torch.Generator().manual_seed(batch.seed)).to(fit.device)
    best = torch.where(fit, noise, -1.0).topk(most, 1)
    return best.indices + 1, best.values >= 0


def kept_roots(roots: int, share: float, steps: int) -> list[int]:
    """Behind how many roots each unit of a draft is scored: PARD's conditional drop of tokens (arXiv 2504.18583)."""
    return [math.ceil(roots * max(share**depth, LEAST)) for depth in range(steps)]


def own_ids(head: Any) -> Tensor | None:
    """The target's ids that a head scores, ascending; None: all of them."""
    return head.ids if isinstance(head, EagleNetwork) else None


def among(own: Tensor | None, units: Tensor) -> Tensor:
    """The places of units `[…]` among the ids that a head scores, -1 where there is none; None: all are."""
    if own is None:
        return units
    found = torch.searchsorted(own, units).clamp(max=len(own) - 1)
    return torch.where(own[found] == units, found, -1)
