"""Seconds of a function call and of a target's passes, with the device's work finished."""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from mmspec.core.protocols import Target
from mmspec.core.types import Draft

NODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def pass_seconds(target: Target, inputs: Any, nodes: Sequence[int] = NODES, repeats: int = 25) -> dict[int, float]:
    """Median seconds of a target pass over a chain, by its number of nodes; one row, all sizes measured in turns."""
    started = target.start(inputs, 1, max(nodes))
    # An empty prompt has no last unit; zeros will do, since the time of a pass does not depend on the values it reads.
    rows, length, *unit = started.prompt.shape
    root = started.prompt[:, -1] if length else started.prompt.new_zeros(rows, *unit)
    room = torch.full((rows,), max(nodes), device=root.device)
    drafts = {n: Draft.chain(root[:, None].expand(-1, n - 1, *unit).contiguous()).rooted(root, room) for n in nodes}
    seconds: dict[int, list[float]] = {n: [] for n in nodes}
    for repeat in range(repeats + 3):
        for n, draft in drafts.items():
            elapsed = timed(partial(target.verify, started.cache, draft), str(root.device))
            if repeat >= 3:
                seconds[n].append(elapsed)
    return {n: statistics.median(times) for n, times in seconds.items()}


def timed(work: Callable[[], Any], device: str) -> float:
    """Wall-clock seconds of a function call, with the device's work finished."""
    synchronize(device)
    began = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - began


def synchronize(device: str) -> None:
    """Wait until the device has finished its work; returns at once on the CPU."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
