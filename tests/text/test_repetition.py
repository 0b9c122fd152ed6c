"""The share of different n-grams: loops make it small."""

import pytest
import torch

from mmspec.bench.race import Run
from mmspec.kits.text.bench.run import distinct


def text(*units: int) -> Run:
    return Run(1.0, [torch.tensor(units)])


def test_loops_have_few_different_n_grams() -> None:
    assert distinct([text(1, 2, 1, 2, 1, 2, 1)], 2) == pytest.approx(2 / 6)
    assert distinct([text(1, 2, 3, 4), text(5, 5, 5, 5)], 3) == pytest.approx((1 + 1 / 2) / 2)
    assert distinct([text(1)], 2) == 0
