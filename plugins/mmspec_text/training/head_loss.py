"""The loss of a head that is unrolled over a text (EAGLE-3, arXiv 2503.01840, § 3.1).

At every depth of a draft its distribution is compared with what the target says behind the same units.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mmspec.training.losses import DraftLoss, TokenFilter, draft_loss
from mmspec_text.training.along import over_own_ids
from mmspec_text.training.batch import Batch
from mmspec_text.training.compared import compared


def head_loss(
    teacher: Callable[[Tensor], tuple[Tensor | None, Tensor]],
    loss: DraftLoss,
    steps: int,
    chosen: TokenFilter | None = None,
    anchors: int = 64,
) -> Callable[[nn.Module, Batch], Tensor]:
    """The loss of a head on a batch: the mean over the depths of a draft, by their weights.

    Args:
        teacher: Its target, a `Teacher`.
        loss: The loss at one depth.
        steps: Units of a draft.
        chosen: Chooses rows anew at every depth, among those that count there; None: all of them.
        anchors: Most roots of a sequence behind which a head that scores a block is trained.
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
