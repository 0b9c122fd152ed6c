"""Peak memory of a method: weights, copies of weights that are laid out for narrow passes, and what a call adds."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from mmspec.bench.rows import Footprint
from mmspec.hosts.linear import laid_out


def footprint(work: Callable[[], Any], models: Iterable[torch.nn.Module], device: str) -> Footprint:
    """Measure the memory of a method.

    Args:
        work: A call of the method. It runs twice, so that what only the first call allocates is not counted; copies of
            weights that the second call makes count as copies, not as growth.
        models: The target's model and the draft model.
        device: Device of the models.
    """
    modules = list(models)
    work()
    before = sum(map(laid_out, modules))
    growth = peak_growth(work, device)
    copies = sum(map(laid_out, modules))
    added = max(0, growth - max(0, copies - before))
    return Footprint(sum(map(weights, modules)) + copies + added, copies)


def peak_growth(work: Callable[[], Any], device: str) -> int:
    """Largest growth of torch's memory during a function call, in bytes.

    On CUDA the allocator counts. On the CPU the profiler records every allocation, which slows the call down: do not
    time the same call.
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
    allocated = peak = 0
    for _, size in events:
        allocated += size
        peak = max(peak, allocated)
    return peak


def weights(model: torch.nn.Module) -> int:
    """Bytes of a module's parameters and buffers."""
    return sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))
