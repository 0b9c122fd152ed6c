"""How many kernels a piece of work launches, and how often the host waits for the device.

On CUDA torch's profiler counts the driver's calls. On a CPU every operation that is not a view counts as one launch,
since on a GPU it would be at least one, and every value that the host reads as one wait. Among these are reads that the
library makes on a CPU only, where they cost nothing, so that waits on a CPU are an upper bound.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
"""Beginnings of the names of the driver's calls, of which there are variants."""
_READS = (
    Tensor.tolist,
    Tensor.item,
    Tensor.cpu,
    Tensor.numpy,
    Tensor.nonzero,
    Tensor.__bool__,
    Tensor.__int__,
    Tensor.__float__,
    Tensor.__index__,
    torch.equal,
)


@dataclass(frozen=True)
class Counts:
    launches: int  # kernels and graphs that were launched; on a CPU, operations that are not views
    waits: int  # how often the host waited for the device; on a CPU, how often it read a value


def count(work: Callable[[], Any], device: torch.device) -> Counts:
    """Run a piece of work once and count; it is much slower meanwhile, so its time means nothing."""
    return _profiled(work) if device.type == "cuda" else _dispatched(work)


def _profiled(work: Callable[[], Any]) -> Counts:
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        work()
    seen = {event.key: event.count for event in profile.key_averages()}

    def calls(beginnings: tuple[str, ...]) -> int:
        return sum(number for name, number in seen.items() if name.startswith(beginnings))

    return Counts(calls(LAUNCHES), max(0, calls(WAITS) - _profilers_own_waits()))


@cache
def _profilers_own_waits() -> int:
    """The waits that the profiler adds when it stops, counted over no work at all."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        pass
    return sum(event.count for event in profile.key_averages() if event.key.startswith(WAITS))


def _dispatched(work: Callable[[], Any]) -> Counts:
    with _Reads() as reads, _Operations() as operations:
        work()
    return Counts(operations.number, reads.number)


class _Operations(TorchDispatchMode):
    """Counts operations that are not views."""

    number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += not func.is_view
        return func(*args, **(kwargs or {}))


class _Reads(TorchFunctionMode):
    """Counts the host's reads of values."""

    number = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += func in _READS
        return func(*args, **(kwargs or {}))
