"""AdaSPEC's token filter (arXiv 2510.19779): a small drafter learns what it can learn, and leaves the rest.

A reference is a drafter of the same kind that was distilled from the target by forward KL before. At every token
Δ = KL(p ‖ q) of the drafter less KL(p ‖ q) of the reference: how much it still has to learn there. Of a batch's tokens
the share k with the largest Δ counts (the paper: k = 0.4; the smaller, the choosier; 1: all).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mmspec.training.losses import forward_kl


@dataclass(frozen=True)
class TokenFilter:
    """A filter."""

    reference: nn.Module  # the reference, which is not trained any more
    share: float  # k, above 0 and at most 1

    @torch.no_grad()
    def kept(self, logits: Tensor, reference: Tensor, p: Tensor, mask: Tensor) -> Tensor:
        """The rows that still count, `[…, row]` bool.

        Logits of the drafter, of the reference, and p are `[…, row, vocab]`; `mask [… , row]` bool are the rows that
        count without the filter.
        """
        return largest(forward_kl(logits, p) - forward_kl(reference, p), mask, self.share)


def largest(values: Tensor, mask: Tensor, share: float) -> Tensor:
    """The ceil(share · n) largest of the n values in a mask, as a mask of the same shape.

    By their ranks, and not by a quantile: torch has none of more than 2 ** 24 numbers, and it takes all equal values.
    """
    wanted = math.ceil(share * int(mask.sum()) - 1e-9)
    inside = torch.where(mask, values, -torch.inf).flatten()
    best = inside.topk(wanted).indices
    return torch.zeros_like(mask).flatten().index_fill(0, best, True).view_as(mask)
