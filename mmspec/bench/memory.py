"""How much memory a call needs: weights, copies of them that are kept for speed, and what the call adds."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from mmspec.hosts.linear import laid_out


@dataclass(frozen=True)
class Footprint:
    """Bytes that a method takes.

    Attributes:
        peak: Weights, their copies, and the most that a call adds.
        laid_out: Of these, copies of weights, laid out for narrow passes.
    """

    peak: int
    laid_out: int


def footprint(work: Callable[[], Any], models: Iterable[torch.nn.Module], device: str) -> Footprint:
    """What a method takes.

    Args:
        work: A call of it. It runs twice: what is made once is not what a call adds. Copies that the second call makes
            are counted among the copies, and not again as its own.
        models: Target and draft model.
        device: Where they are.
    """
    held = list(models)
    work()
    before = sum(map(laid_out, held))
    grown = peak_growth(work, device)
    copies = sum(map(laid_out, held))
    added = max(0, grown - max(0, copies - before))
    return Footprint(sum(map(weights, held)) + copies + added, copies)


def peak_growth(work: Callable[[], Any], device: str) -> int:
    """Largest growth of torch's memory during some work, in bytes.

    On CUDA the allocator tells. On the CPU the profiler records every allocation, which slows the work down: measure it
    apart from time.
    """
    if device.startswith("cuda"):
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as profile:
        work()
    recorded = profile.profiler.kineto_results.events()
    events = sorted((event.start_ns(), event.nbytes()) for event in recorded if event.name() == "[memory]")
    held = peak = 0
    for _, size in events:
        held += size
        peak = max(peak, held)
    return peak


def weights(model: torch.nn.Module) -> int:
    """Bytes of a module's parameters and buffers."""
    return sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))
