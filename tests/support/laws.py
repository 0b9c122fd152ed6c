"""Assertions that a sample follows a law, in closed form.

Tests decode many rows in one batched call and compare them with a joint, in up to three looks:

1. `FIRST` rows: p > `CLEAR` passes, as 95 of 100 runs of a right rule do.
2. All rows, where the first look decided nothing: p > `LEVEL` passes.
3. All rows of another seed: p > `LEVEL` passes, all else fails.

A right rule fails at most once in 10⁸ runs. A wrong one passes the first look in at most 5 of 100 runs if its bias is
4.6 % of a joint of 243 cells or more (in total variation), and more often if it is smaller. `CLEAR = 1`, with which the
slow tier runs, leaves that look out; `ROWS` then miss a bias of 1.3 % in 5 of 100 runs.
"""

from collections.abc import Callable

from torch import Tensor

from mmspec.testing.statistics import LEVEL, OTHER_SEED, joint_p_value, normal_p_value, total_variation

FIRST, ROWS = 10_000, 200_000
CLEAR = 0.05
"""p-value above which the first look is enough."""
Sample = Callable[[int, int], Tensor]
"""`sample(seed, rows)`: that many rows, of that seed."""


def assert_follows(sample: Sample, joint: Tensor, rows: int = ROWS, seed: int = 0) -> float:
    """Assert that `sample(seed, rows) [rows, length]` follows `joint`, in up to three looks. Returns the p-value; else
    says those of both seeds, and total variations.
    """

    def test(units: Tensor) -> tuple[float, str]:
        return joint_p_value(units, joint), f"total variation {total_variation(units, joint):.4f}"

    return _assert_passes(sample, test, "do not follow the joint", rows, seed)


def assert_normal(sample: Sample, mean: Tensor, covariance: Tensor, rows: int = ROWS, seed: int = 0) -> float:
    """Assert that `sample(seed, rows) [rows, dim]` is normal with that mean and covariance (see `normal_p_value`).

    In up to three looks. Returns the p-value; else says those of both seeds, and the worst projections.
    """

    def test(found: Tensor) -> tuple[float, str]:
        p, along = normal_p_value(found, mean, covariance)
        return p, f"along {along}"

    return _assert_passes(sample, test, "are not normal with that mean and covariance", rows, seed)


def _assert_passes(
    sample: Sample, test: Callable[[Tensor], tuple[float, str]], what: str, rows: int, seed: int
) -> float:
    if rows > FIRST and CLEAR < 1:
        p, _ = test(sample(seed, FIRST))
        if p > CLEAR:
            return p
    failed = []
    for attempt in (seed, seed + OTHER_SEED):
        p, detail = test(sample(attempt, rows))
        if p > LEVEL:
            return p
        failed.append(f"seed {attempt}: p = {p:.2g}, {detail}")
    raise AssertionError(f"{rows:,} rows {what} ({'; '.join(failed)})")
