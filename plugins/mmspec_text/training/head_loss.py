"""The loss of a head that is unrolled over a text (EAGLE-3, arXiv 2503.01840, § 3.1).

At every depth of a draft its distribution is compared with what the target says behind the same units.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mmspec.core.distributions import take_nodes
from mmspec.training.losses import DraftLoss, TokenFilter, draft_loss
from mmspec_text.drafters.heads.dflash.network import DFlashNetwork
from mmspec_text.drafters.heads.eagle.network import EagleNetwork
from mmspec_text.drafters.heads.unroll import along, unrolled_blocks
from mmspec_text.training.batch import Batch


def head_loss(
    teacher: Callable[[Tensor], tuple[Tensor | None, Tensor]],
    loss: DraftLoss,
    steps: int,
    chosen: TokenFilter | None = None,
    anchors: int = 64,
) -> Callable[[nn.Module, Batch], Tensor]:
    """The loss of a head on a batch: the mean over the depths of a draft, by their weights.

    `steps` counts the units of a draft. `chosen` chooses rows anew at every depth, among those that count there. A head
    that scores a block learns behind at most `anchors` roots of a sequence.
    """
    weights = sum(loss.decay**depth for depth in range(steps))

    def of(model: nn.Module, batch: Batch) -> Tensor:
        features, logits = teacher(batch.ids)
        assert features is not None
        p, units = over_own_ids(model, logits.softmax(-1), batch.ids)
        total = p.new_zeros(())
        given = (features, p, units, batch, steps, anchors)
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
    """Places `[sequence, root]` int64, and which of them are roots: units that are learnt and followed by one that is,
    drawn without replacement as a function of the batch, at most so many of a sequence.
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
