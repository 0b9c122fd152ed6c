"""The loss of a draft model: its distribution behind every unit of a text, compared with the target's.

On-policy data of DistillSpec (arXiv 2310.08461, algorithm 1): of a share λ of the sequences the end is sampled from the
draft model of that step, and the loss compares it with the target behind the units that it wrote. So it learns what it
will be asked about.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mmspec.training.losses import DraftLoss, TokenFilter, draft_loss
from mmspec_text.training.answers import prompts_of
from mmspec_text.training.batch import Batch
from mmspec_text.training.teacher import Teacher
from mmspec_text.training.written import GIVEN, answered


def model_loss(
    teacher: Teacher,
    loss: DraftLoss,
    chosen: TokenFilter | None = None,
    drafter_share: float = 0.0,
    temperature: float = 1.0,
) -> Callable[[Any, Batch], Tensor]:
    """The loss of a draft model on a batch.

    `chosen` chooses units among those that count. The draft model ends a share of the sequences itself (`rewritten`).
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


def rewritten(student: Any, batch: Batch, share: float, temperature: float) -> tuple[Batch, Tensor]:
    """A batch with other ends: of a conversation the whole answer, of a text what is behind its first units.

    `share` is λ, the probability that a sequence is one of them; temperature 0 is greedy.

    Returns:
        The batch, a function of the weights and the batch alone; and its units `[sequence, unit]` int64 for a loss on
        the text itself, -1 where the draft model wrote: its own text is no example.
    """
    g = torch.Generator().manual_seed(batch.seed)
    chosen = torch.rand(len(batch.ids), generator=g) < share
    if not chosen.any():
        return batch, batch.ids
    cuts, examples = [], []
    where = chosen.nonzero()[:, 0].tolist()
    given = [_given(counted) for counted in batch.counted.cpu()]
    prompts = prompts_of([batch.ids[row, : given[row]].cpu() for row in where])
    room = batch.ids.shape[1] - min(given[row] for row in where)
    written = dict(zip(where, answered(student, prompts, room, temperature, batch.seed), strict=True))
    for row, (ids, counted) in enumerate(zip(batch.ids.cpu(), batch.counted.cpu(), strict=True)):
        if row in written:
            ids, counted = written[row].ids[: len(ids)], written[row].counted[: len(ids)]
        cuts.append((ids, counted))
        examples.append((torch.full_like(ids, -1) if row in written else ids, counted))
    least = batch.ids.shape[1]
    new, own = Batch.padded(cuts, batch.seed, least), Batch.padded(examples, batch.seed, least)
    return new.to(batch.ids.device), own.ids.to(batch.ids.device)


def _given(counted: Tensor) -> int:
    first = int(counted.int().argmax())
    return first + 1 if first else min(GIVEN, len(counted) // 2)
