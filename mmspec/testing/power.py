"""How small a bias a test sees: the smallest that fails it in 95 of 100 runs, its retry included.

A check of this package fails when two seeds give p <= 1e-4, so that each of them must do so with probability √0.95.
"""

import math

from torch import Tensor

from mmspec.testing.statistics import LEVEL, pooled

POWER = 0.95
EACH = POWER**0.5


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
