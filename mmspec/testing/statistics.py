"""Does a sample follow a distribution? χ² and total variation for discrete joints, Kolmogorov-Smirnov for continuous
distributions.

The tests decode many rows in one batched call and compare them with a joint in closed form; p > 1e-4 with one retry on
another seed fails a correct rule once in 10⁸ runs, and a wrong one, at 200,000 rows, practically always.
"""

from collections.abc import Callable

import torch
from torch import Tensor

LEVEL = 1e-4
POOLED = 5.0  # cells that expect fewer rows than this are pooled: χ² is an approximation for large counts


def counts_of(units: Tensor, joint: Tensor) -> Tensor:
    """How many rows of `units [rows, length]` fell into each cell of `joint [(vocab,) * length]`: `[cells]` float64.

    Raises:
        ValueError: The rows are not as long as the joint has dimensions, or hold ids outside of it.
    """
    if units.dim() != 2 or units.shape[1] != joint.dim():
        raise ValueError(f"the joint is over {joint.dim()} units, the sample has shape {list(units.shape)}")
    vocab = torch.tensor(joint.shape)
    if ((units < 0) | (units >= vocab)).any():
        raise ValueError(f"the sample holds ids outside of the joint's {list(joint.shape)}")
    strides = torch.tensor(joint.contiguous().stride())
    return torch.bincount((units * strides).sum(1), minlength=joint.numel()).double()


def joint_p_value(units: Tensor, joint: Tensor) -> float:
    """χ² p-value of `units [rows, length]` int64 under `joint [(vocab,) * length]`; 0 for impossible rows."""
    from scipy.stats import chi2

    observed, expected = counts_of(units, joint), joint.double().flatten() * len(units)
    if observed[expected <= 0].any():
        return 0.0
    kept, rest = pooled(expected)
    observed = torch.cat([observed[kept], (len(units) - observed[kept].sum())[None]])
    expected = torch.cat([expected[kept], rest[None]])
    used = expected > 0
    freedom = int(used.sum()) - 1
    if freedom < 1:
        raise ValueError("all mass is in one cell: compare with ==")
    distance = ((observed - expected)[used] ** 2 / expected[used]).sum()
    return float(chi2.sf(float(distance), freedom))


def pooled(expected: Tensor) -> tuple[Tensor, Tensor]:
    """Cells that χ² takes one by one, `[n]` int64, and how many rows all others expect together.

    Args:
        expected: `[cells]` float64, rows that each expects.
    """
    kept = (expected >= POOLED).nonzero()[:, 0]
    small = expected.clone()
    small[kept] = 0.0
    return kept, small.sum()


def total_variation(units: Tensor, joint: Tensor) -> float:
    """Half the summed distance of `units [rows, length]` from `joint`; noise alone gives up to 0.4 √(cells / rows)."""
    return float((counts_of(units, joint) / len(units) - joint.double().flatten()).abs().sum() / 2)


def ks_p_value(samples: Tensor, cdf: Callable | tuple[float, float]) -> float:
    """Kolmogorov-Smirnov p-value of `samples [n]` under a distribution function, or a normal of `(mean, sigma)`."""
    from scipy.stats import kstest, norm

    return float(kstest(samples.double().numpy(), norm(*cdf).cdf if isinstance(cdf, tuple) else cdf).pvalue)


def assert_follows(sample: Callable[[int], Tensor], joint: Tensor, seed: int = 0) -> float:
    """`sample(seed) [rows, length]` follows `joint`: χ² p > 1e-4, with one retry on another seed. Returns p.

    Raises:
        AssertionError: Both seeds failed; p and total variation are named.
    """
    failed = []
    for attempt in (seed, seed + 7919):
        units = sample(attempt)
        p = joint_p_value(units, joint)
        if p > LEVEL:
            return p
        failed.append(f"seed {attempt}: p = {p:.2g}, total variation {total_variation(units, joint):.4f}")
    raise AssertionError(f"{len(units):,} rows do not follow the joint ({'; '.join(failed)})")


def assert_normal(sample: Callable[[int], Tensor], mean: Tensor, covariance: Tensor, seed: int = 0) -> float:
    """`sample(seed) [rows, dim]` is normal with `mean [dim]` and `covariance [dim, dim]`. Returns `normal_p_value`.

    One retry on another seed.

    Raises:
        AssertionError: Both seeds failed; the worst projection is named.
    """
    failed = []
    for attempt in (seed, seed + 7919):
        rows = sample(attempt)
        p, along = normal_p_value(rows, mean, covariance)
        if p > LEVEL:
            return p
        failed.append(f"seed {attempt}: p = {p:.2g} along {along}")
    raise AssertionError(f"{len(rows):,} rows are not normal as promised ({'; '.join(failed)})")


def normal_p_value(rows: Tensor, mean: Tensor, covariance: Tensor) -> tuple[float, list[float]]:
    """p-value of `rows [rows, dim]` as normal with `mean [dim]`, `covariance [dim, dim]`, and the worst projection.

    Kolmogorov-Smirnov of every projection, corrected for their number.
    """
    rows, mean, covariance = rows.double(), mean.double(), covariance.double()
    looks = projections(len(mean))
    sigmas = [float((along @ covariance @ along).sqrt()) for along in looks]
    found = [
        (ks_p_value(rows @ along, (float(mean @ along), sigma)), along.tolist())
        for along, sigma in zip(looks, sigmas, strict=True)
    ]
    p, along = min(found)
    return min(1.0, p * len(looks)), along


def projections(dim: int) -> list[Tensor]:
    """Every coordinate, and the sum and the difference of every two of them, which see covariances: `[dim]` each."""
    eye = torch.eye(dim, dtype=torch.float64)
    pairs = [(i, j) for i in range(dim) for j in range(i)]
    return [*eye, *(eye[i] + eye[j] for i, j in pairs), *(eye[i] - eye[j] for i, j in pairs)]
