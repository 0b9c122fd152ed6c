"""Are rows of many numbers independent standard normals? Cheap enough for joints of wide tokens."""

import torch
from torch import Tensor

from mmspec.testing.statistics import ks_p_value


def whitened(rows: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """Rows `[rows, n]` of a normal of `mean [n]`, `covariance [n, n]` as independent standard normals, in float64."""
    root = torch.linalg.cholesky(covariance.double())
    return torch.linalg.solve_triangular(root, (rows.double() - mean.double()).T, upper=False).T


def white_p_value(rows: Tensor) -> float:
    """p-value of `rows [rows, n]` float64 under independent standard normals, corrected for the number of tests.

    Kolmogorov-Smirnov tests of every coordinate, of sums of neighbours and of differences half a row apart; a χ² test
    of all covariances.
    """
    from scipy.stats import chi2

    count, n = rows.shape
    looks = list(rows.T)
    if n > 1:
        looks += [*((rows + rows.roll(1, 1)) / 2**0.5).T, *((rows - rows.roll(n // 2, 1)) / 2**0.5).T]
    p = [ks_p_value(look, (0.0, 1.0)) for look in looks]
    off = rows.T @ rows / count - torch.eye(n, dtype=torch.float64)
    distance = count * (off.triu(1).square().sum() + off.diagonal().square().sum() / 2)
    p.append(float(chi2.sf(float(distance), n * (n + 1) / 2)))
    return min(1.0, min(p) * len(p))
