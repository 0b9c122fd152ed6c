"""How much memory a call needs beyond what was there before it."""

from collections.abc import Callable
from typing import Any

import torch


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
