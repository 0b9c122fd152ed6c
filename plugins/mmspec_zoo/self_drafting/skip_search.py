"""The search for a set of sub-layers that a model drafts well without: SWIFT (arXiv 2410.06916).

A set is as good as its *matchness*: on the last units of the running text, how often the model without the set finds
the unit that followed likeliest, every position behind the true text. Sets are proposed at random; every
`BAYES`th one is the best of a Gaussian process over all sets that were tried, by its upper confidence bound. The best
set stays from call to call.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

SKIPPED = 0.45
"""The published share of the sub-layers between the first and the last layer that are left out."""
BAYES = 25
CANDIDATES = 256
"""Random sets among which the Gaussian process chooses."""
KAPPA, NOISE, LENGTH = 2.5, 1e-2, 1.0
"""Of the process: weight of its deviation and variance of an observation, as in the published code; a length scale."""
ENOUGH, IN_VAIN, MOST = 0.95, 300, 1000
"""The search is over at this matchness, after so many sets in a row that were no better, or after so many in all."""


def numbers_between(layers: int) -> list[int]:
    """The sub-layers that may be left out: all but the first and the last layer's."""
    return list(range(2, 2 * layers - 2))


def first_set(layers: int, size: int) -> frozenset[int]:
    """The set before any search: sub-layers of every other layer, from layer 1 on, `size` of them."""
    inner = numbers_between(layers)
    odd_first = sorted(inner, key=lambda number: (number // 2 + 1) % 2)
    return frozenset(odd_first[:size])


@dataclass
class SkipSearch:
    """The search for one model."""

    layers: int  # layers of the model
    size: int  # sub-layers of a set
    best: frozenset[int] = frozenset()  # the best set so far
    score: float = 0.0  # its matchness; 0 before any was measured
    # All sets that were measured, with their matchness
    tried: list[tuple[frozenset[int], float]] = field(default_factory=list)
    in_vain: int = 0  # sets in a row that were no better

    def __post_init__(self) -> None:
        self.best = first_set(self.layers, self.size)
        self._generator = torch.Generator().manual_seed(0)  # drafts are reproducible, too

    @property
    def over(self) -> bool:
        """True if no further set is tried."""
        alone = not 0 < self.size < len(numbers_between(self.layers))  # then there is one set
        return alone or self.score >= ENOUGH or self.in_vain >= IN_VAIN or len(self.tried) >= MOST

    def propose(self) -> frozenset[int]:
        """The next set to measure."""
        if not self.tried:
            return self.best
        return self._bayesian() if (len(self.tried) + 1) % BAYES == 0 else self._random()

    def observe(self, numbers: frozenset[int], matchness: float) -> None:
        """Keep a set if it is the best one."""
        self.tried.append((numbers, matchness))
        self.in_vain += 1
        if matchness > self.score:
            self.best, self.score, self.in_vain = numbers, matchness, 0

    def _random(self) -> frozenset[int]:
        inner = numbers_between(self.layers)
        order = torch.randperm(len(inner), generator=self._generator)[: self.size]
        return frozenset(inner[i] for i in order.tolist())

    def _bayesian(self) -> frozenset[int]:
        candidates = [self._random() for _ in range(CANDIDATES)]
        seen = self._points([numbers for numbers, _ in self.tried])
        values = torch.tensor([matchness for _, matchness in self.tried], dtype=torch.float64)
        bound = upper_bound(seen, values, self._points(candidates))
        return candidates[int(bound.argmax())]

    def _points(self, sets: Sequence[frozenset[int]]) -> Tensor:
        inner = numbers_between(self.layers)
        return torch.tensor([[number in one for number in inner] for one in sets], dtype=torch.float64)


def upper_bound(seen: Tensor, values: Tensor, points: Tensor) -> Tensor:
    """Mean plus `KAPPA` deviations of a Gaussian process with a Matérn kernel (ν = 5/2), at `points [n, dim]`: `[n]`.

    It was observed at `seen [m, dim]`, with `values [m]`, whose mean and deviation are taken out first; all is float64.
    """
    scale = values.std(correction=0).clamp(min=1e-12)
    among = _matern(seen, seen) + NOISE * torch.eye(len(seen), dtype=seen.dtype)
    between, factor = _matern(points, seen), torch.linalg.cholesky(among)
    weights = torch.cholesky_solve(((values - values.mean()) / scale)[:, None], factor)
    solved = torch.linalg.solve_triangular(factor, between.T, upper=False)
    deviation = (1 - solved.square().sum(0)).clamp(min=0).sqrt()
    return values.mean() + scale * ((between @ weights)[:, 0] + KAPPA * deviation)


def _matern(a: Tensor, b: Tensor) -> Tensor:
    distance = 5**0.5 * torch.cdist(a, b) / LENGTH
    return (1 + distance + distance.square() / 3) * (-distance).exp()
