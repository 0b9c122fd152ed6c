"""Tests detect the smallest bias that they claim to detect, and often miss half of it."""

from collections.abc import Callable

import pytest
import torch

from mmspec.testing.lean import Lean
from mmspec.testing.statistics import EACH, LEVEL, chi_squared_sees, joint_p_value, ks_p_value, ks_sees, mean_sees

RUNS = 100
SURE, UNSURE = EACH - 0.06, 0.8
"""Shares of the runs: four standard deviations below what is said; and well below it."""


def seen(p_value: Callable[[torch.Generator], float]) -> float:
    """The share of runs that fail."""
    return sum(p_value(torch.Generator().manual_seed(seed)) <= LEVEL for seed in range(RUNS)) / RUNS


@pytest.mark.parametrize(("cells", "rows"), [(2, 4_000), (27, 10_000), (243, 10_000)])
def test_chi_squared(cells: int, rows: int) -> None:
    """The bias that is hardest to see: half of the mass grows, half shrinks, all by one share."""
    joint = torch.full((cells,), 1 / cells, dtype=torch.float64)
    up = torch.arange(cells) < cells // 2
    sign = torch.where(up, 1.0 / up.sum(), -1.0 / (~up).sum())

    def p_value(generator: torch.Generator, bias: float) -> float:
        biased = joint + bias * sign
        return joint_p_value(torch.multinomial(biased, rows, True, generator=generator)[:, None], joint)

    sees = chi_squared_sees(joint, rows)
    assert seen(lambda generator: p_value(generator, sees)) >= SURE
    assert seen(lambda generator: p_value(generator, sees / 2)) <= UNSURE
    assert seen(lambda generator: p_value(generator, 0.0)) == 0


def test_cells_that_are_pooled_are_not_seen_into() -> None:
    joint = torch.tensor([0.9, 0.0998, 0.0001, 0.0001], dtype=torch.float64)
    assert chi_squared_sees(joint, 10_000) - chi_squared_sees(joint[:2] / joint[:2].sum(), 10_000) > 2e-4


@pytest.mark.parametrize(("rows", "tests"), [(2_000, 1), (5_000, 25)])
def test_kolmogorov_smirnov(rows: int, tests: int) -> None:
    """The distance is largest in the middle, where the sample's own spread is."""

    def p_value(generator: torch.Generator, bias: float) -> float:
        u = torch.rand(rows, generator=generator, dtype=torch.float64)
        below = torch.rand(rows, generator=generator) < 0.5 + bias
        return tests * ks_p_value(torch.where(below, u / 2, 0.5 + u / 2), lambda x: x.clip(0, 1))

    sees = ks_sees(rows, tests)
    assert seen(lambda generator: p_value(generator, sees)) >= SURE
    assert seen(lambda generator: p_value(generator, sees / 2)) <= UNSURE


def test_the_lean() -> None:
    count, chance = 5_000, 0.3

    def p_value(generator: torch.Generator, bias: float) -> float:
        hits = (torch.rand(count, generator=generator) < chance + bias).sum()
        return Lean(float(hits) - count * chance, count * chance * (1 - chance), count).p_value

    sees = mean_sees(count * chance * (1 - chance), count)
    assert Lean(0.0, count * chance * (1 - chance), count).sees == sees
    assert seen(lambda generator: p_value(generator, sees)) >= SURE
    assert seen(lambda generator: p_value(generator, sees / 2)) <= UNSURE
    assert seen(lambda generator: p_value(generator, 0.0)) == 0
    assert Lean().p_value == 1 and Lean().sees == 1


def test_more_rows_see_less_bias() -> None:
    joint = torch.full((243,), 1 / 243, dtype=torch.float64)
    default, thorough = chi_squared_sees(joint, 50_000), chi_squared_sees(joint, 400_000)
    assert 0.02 < default < 0.03 and thorough < 0.01
    assert default / thorough == pytest.approx(8**0.5, rel=1e-6)
    assert ks_sees(400_000, 25) < 0.006 < 0.02 < ks_sees(20_000, 25)
