"""The limits of a device, measured in the same run as everything that they are compared with."""

from collections.abc import Callable
from typing import Any

import torch

from mmspec.bench.timing import timed
from mmspec_text.plan.work import Machine

REPEATS, LAUNCHES = 7, 100


def measure_machine(device: torch.device, dtype: torch.dtype, small: bool) -> Machine:
    """The fastest of some copies and matrix products; they are larger on a GPU, where small ones take no time."""
    source = torch.ones(2 ** (24 if small else 30), device=device, dtype=dtype)
    copy, square = torch.empty_like(source), torch.randn(*(2 * (512 if small else 8192,)), device=device, dtype=dtype)
    product = torch.empty_like(square)
    moved = 2 * source.numel() * source.element_size()
    return Machine(
        bandwidth=moved / _fastest(lambda: copy.copy_(source), device),
        arithmetic=2 * square.shape[0] ** 3 / _fastest(lambda: torch.mm(square, square, out=product), device),
    )


def launch_seconds(device: torch.device) -> float:
    """Seconds to launch one small kernel, the mean of many."""
    one = torch.zeros(1, device=device)

    def many() -> None:
        for _ in range(LAUNCHES):
            one.add_(1)

    return _fastest(many, device) / LAUNCHES


def _fastest(work: Callable[[], Any], device: torch.device) -> float:
    return min(timed(work, str(device)) for _ in range(REPEATS))
