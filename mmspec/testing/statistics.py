"""Evidence that a sample follows a distribution: χ² and total variation of discrete joints, Kolmogorov-Smirnov tests.

`…_sees` say how small a bias a test sees: the smallest that fails it in 95 of 100 runs, its retry included. A check
fails when two seeds give p <= 1e-4, so that each of them must do so with probability √0.95.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

LEVEL = 1e-4
POOLED = 5.0
"""Cells that expect fewer rows than this are pooled: χ² is an approximation for large counts."""
OTHER_SEED = 7919
"""Added to a seed for the retry."""
EACH = 0.95**0.5


def counts_of(units: Tensor, joint: Tensor) -> Tensor:
    """The number of rows of `units [rows, length]` in each cell of `joint [(vocab,) * length]`: `[cells]` float64."""
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
    """Cells that χ² takes one by one, `[n]` int64, and the rows that all others expect together.

    `expected [cells]` float64 are the rows that each cell expects.
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


def normal_p_value(rows: Tensor, mean: Tensor, covariance: Tensor) -> tuple[float, list[float]]:
    """p-value of `rows [rows, dim]` under a normal of `mean [dim]` and `covariance [dim, dim]`; the worst projection.

    Kolmogorov-Smirnov tests of all `projections`, corrected for their number.
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
    """Every coordinate, and the sum and the difference of every two of them, which show covariances: `[dim]` each."""
    eye = torch.eye(dim, dtype=torch.float64)
    pairs = [(i, j) for i in range(dim) for j in range(i)]
    return [*eye, *(eye[i] + eye[j] for i, j in pairs), *(eye[i] - eye[j] for i, j in pairs)]


def chi_squared_sees(joint: Tensor, rows: int) -> float:
    """Total variation that `joint_p_value` sees in `rows` rows of `joint [(vocab,) * length]`.

    Of all biases of one total variation t, those that move all probabilities by the same share have the smallest
    Σ (p' - p)² / p, which is 4 t²: rows times that is the noncentrality of χ². Other biases show at a smaller t, except
    for shifts inside of the pooled cells: the whole mass of these is added.
    """
    from scipy.optimize import brentq
    from scipy.stats import chi2, ncx2

    expected = joint.double().flatten() * rows
    kept, rest = pooled(expected)
    freedom = len(kept) + bool(rest > 0) - 1
    critical = chi2.isf(LEVEL, freedom)
    shift = brentq(lambda shift: ncx2.sf(critical, freedom, shift) - EACH, 1e-9, 20 * (freedom + 10))
    return min(1.0, math.sqrt(shift / rows) / 2 + float(rest) / rows)


def ks_sees(rows: int, tests: int = 1) -> float:
    """Distance of distribution functions that a Kolmogorov-Smirnov test sees, at the level of one of `tests` tests.

    At the largest distance, the share of rows below it has a standard deviation of at most 0.5 / √rows.
    """
    from scipy.stats import kstwo, norm

    return min(1.0, float(kstwo.isf(LEVEL / tests, rows)) + float(norm.ppf(EACH)) / (2 * math.sqrt(rows)))


def mean_sees(variance: float, count: int) -> float:
    """Shift of the mean of `count` numbers, whose variances sum to `variance`, that a two-sided normal test sees."""
    from scipy.stats import norm

    if not count:
        return 1.0
    return min(1.0, float(norm.isf(LEVEL / 2) + norm.ppf(EACH)) * math.sqrt(variance) / count)
