"""The loss of a draft model: its distribution behind every unit of a text, compared with the target's."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mmspec.training.losses import DraftLoss, TokenFilter, draft_loss
from mmspec_text.training.batch import Batch
from mmspec_text.training.on_policy import rewritten
from mmspec_text.training.teacher import Teacher


def model_loss(
    teacher: Teacher,
    loss: DraftLoss,
    chosen: TokenFilter | None = None,
    drafter_share: float = 0.0,
    temperature: float = 1.0,
) -> Callable[[Any, Batch], Tensor]:
    """The loss of a draft model on a batch.

    Args:
        teacher: Its target.
        loss: The loss at one unit.
        chosen: Chooses units among those that count; None: all of them.
        drafter_share: Share of the sequences that the draft model ends itself (`on_policy`).
        temperature: Of what it writes there.
    """

    def of(student: Any, batch: Batch) -> Tensor:
        batch, units = rewritten(student, batch, drafter_share, temperature)
        p, mask = teacher(batch.ids)[1][:, :-1].softmax(-1), batch.counted[:, :-1]
        logits = student(batch.ids, use_cache=False).logits[:, :-1]
        if chosen is not None:
            with torch.no_grad():
                other = chosen.reference(batch.ids, use_cache=False).logits[:, :-1]
            mask = chosen.kept(logits, other, p, mask)
        return draft_loss(logits, p, mask, 0, loss, units[:, 1:])

    return of
