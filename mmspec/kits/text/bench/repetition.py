"""How much a text repeats itself: small models loop, and loops flatter drafters that look things up."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mmspec.bench.race import Run


def distinct(runs: Sequence[Run], n: int) -> float:
    """Share of an output's n-grams that differ from each other, averaged over outputs of at least `n` units."""
    shares = [_distinct(row, n) for run in runs for row in run.units if len(row) >= n]
    return sum(shares) / len(shares) if shares else 0.0


def _distinct(row: Tensor, n: int) -> float:
    grams = row.unfold(0, n, 1)
    return len(torch.unique(grams, dim=0)) / len(grams)
