"""The law that a toy's output must follow, computed without the decoder: exact joints and greedy decoding."""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor


def exact_joint(next_distribution: Callable[[tuple[int, ...]], Tensor], length: int, vocab: int) -> Tensor:
    """Closed-form joint of the first `length` units: `[(vocab,) * length]` float64.

    `next_distribution` gives the probabilities `[vocab]` of the next unit behind the units emitted so far.
    """
    joint = torch.ones((), dtype=torch.float64)
    for emitted in range(length):
        distributions = [next_distribution(units).double() for units in itertools.product(range(vocab), repeat=emitted)]
        joint = joint[..., None] * torch.stack(distributions).reshape(*(vocab,) * emitted, vocab)
    return joint


def greedy(next_distribution: Callable[[tuple[int, ...]], Tensor], length: int) -> Tensor:
    """The likeliest unit at every position, one after the other: `[length]` int64."""
    units: tuple[int, ...] = ()
    for _ in range(length):
        units += (int(next_distribution(units).argmax()),)
    return torch.tensor(units)


def linear_joint(weights: Tensor, bias: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Mean `[n]` and covariance `[n, n]` of x = weights x + bias + noise · e, e standard normal, in float64.

    `weights [n, n]` are strictly lower triangular: the share of each earlier coordinate; `noise [n]` are deviations.
    """
    eye = torch.eye(len(bias), dtype=torch.float64)
    spread = torch.linalg.solve_triangular(eye - weights.double(), eye, upper=False, unitriangular=True)
    return spread @ bias.double(), spread @ torch.diag(noise.double() ** 2) @ spread.T
