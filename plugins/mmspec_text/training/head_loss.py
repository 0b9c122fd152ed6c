"""The loss of a head that is unrolled over a text (EAGLE-3, arXiv 2503.01840, § 3.1).

At every depth of a draft its distribution is compared with what the target says behind the same units.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mmspec.training.losses import DraftLoss, draft_loss
from mmspec_text.training.along import along, over_own_ids
from mmspec_text.training.teacher import Teacher


def head_loss(teacher: Teacher, loss: DraftLoss, steps: int) -> Callable[[nn.Module, Tensor], Tensor]:
    """The loss of a head on ids `[sequence, unit]`: the mean over the depths of a draft, by their weights.

    Args:
        teacher: Its target.
        loss: The loss at one depth.
        steps: Units of a draft.
    """
    weights = sum(loss.decay**depth for depth in range(steps))

    def of(model: nn.Module, ids: Tensor) -> Tensor:
        features, logits = teacher(ids)
        assert features is not None
        p, units = over_own_ids(model, logits.softmax(-1), ids)
        total = p.new_zeros(())
        for depth, scored in enumerate(along(model, features, ids, steps)):
            rows = scored.shape[1]
            theirs = p[:, depth + 1 : depth + 1 + rows]
            following = units[:, depth + 2 : depth + 2 + rows]
            if following.shape[1] < rows:  # the last row's unit is behind the text
                following = nn.functional.pad(following, (0, 1), value=-1)
            mask = torch.ones_like(following, dtype=torch.bool)
            total = total + draft_loss(scored, theirs, mask, depth, loss, following)
        return total / weights

    return of
