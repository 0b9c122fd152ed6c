"""Losses of language models.

Shapes: logits `[batch, length, vocab]`, ids `[batch, length]` int64; every loss is a float32 scalar.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def next_token(logits: Tensor, ids: Tensor) -> Tensor:
    """The mean cross-entropy of the next token, in nats per token."""
    return F.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())


def distillation(student: Tensor, teacher: Tensor, ids: Tensor, hard: float = 0.1) -> Tensor:
    """KL(teacher ‖ student) averaged over positions, mixed with the next-token loss.

    A draft model should have the teacher's whole distribution: the acceptance rate of exact rules is 1 − TV, not the
    rate at which the likeliest tokens agree.

    Args:
        student: The student's logits `[batch, length, vocab]`.
        teacher: The teacher's logits `[batch, length, vocab]`; no gradient flows into them.
        ids: Token ids `[batch, length]`.
        hard: The share of the next-token loss, in [0, 1].
    """
    p = torch.log_softmax(teacher.detach()[:, :-1].float(), -1)
    q = torch.log_softmax(student[:, :-1].float(), -1)
    soft = F.kl_div(q.flatten(0, 1), p.flatten(0, 1), log_target=True, reduction="batchmean")
    return (1 - hard) * soft + hard * next_token(student, ids)
