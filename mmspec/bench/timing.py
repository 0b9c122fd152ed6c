"""Facts about a machine, times of calls and of a target's passes on it, and the tree whose passes pay there."""

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from mmspec.core.capabilities import RunsModel
from mmspec.core.drafters.shapes import Static
from mmspec.core.drafters.static_tree import expected_units
from mmspec.core.protocols import Target
from mmspec.core.types import Draft
from mmspec.hosts.devices import device_of

Answer = TypeVar("Answer")
PACKAGES = ("mmspec", "torch", "transformers")
NODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
SIZES = (2, 4, 8, 12, 16, 24, 32)
"""Nodes of the passes, root included, among which `paying_nodes` chooses; `REPEATS`, `PROMPT`: of short timings."""
REPEATS, PROMPT = 5, 8


def pass_seconds(
    target: Target,
    inputs: Any,
    nodes: Sequence[int] = NODES,
    repeats: int = 25,
    of: Callable[[list[float]], float] = statistics.median,
) -> dict[int, float]:
    """Seconds of a target pass over a chain, by its number of nodes; one row, all sizes measured in turns. They are the
    median, or `of` all repeats.
    """
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
    return {n: of(times) for n, times in seconds.items()}


def timed(work: Callable[[], Any], device: str) -> float:
    """Wall-clock seconds of a function call, with the device's work finished."""
    return called(work, device)[0]


def called(work: Callable[[], Answer], device: str) -> tuple[float, Answer]:
    """As `timed`, and what the function returned."""
    synchronize(device)
    began = time.perf_counter()
    result = work()
    synchronize(device)
    return time.perf_counter() - began, result


def synchronize(device: str) -> None:
    """Wait until the device has finished its work; returns at once on the CPU."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def describe(device: str) -> str:
    """Name of the processor and its number of threads, or name of the GPU."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    names = [line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' * (threads > 1)}"


def versions() -> dict[str, str]:
    """Versions of the packages that decide about speed, and of Python."""
    return {name: version(name) for name in PACKAGES} | {"python": platform.python_version()}


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.is_file() else []


def paying_nodes(target: Target, model: Target, tree: Callable[[int], Static], rates: Sequence[float]) -> int:
    """The drafted nodes of the tree with the most expected units per second (Sequoia, arXiv 2402.12374).

    The target's passes of several sizes are timed, and the draft model's pass of one node, which stands for a level.
    `tree` makes the tree of so many drafted nodes; `rates` are the chances of a child of each rank.
    """
    whole = pass_seconds(target, _prompt(target), SIZES, REPEATS, min)
    level = step_seconds(model)

    def units_per_second(size: int) -> float:
        drafted = tree(size - 1)
        units = expected_units(drafted.tree, drafted.ranks, rates)
        return units / (whole[size] + level * len(drafted.by_level))

    return max(SIZES, key=units_per_second) - 1


def step_seconds(target: Target) -> float:
    """Seconds of a target's pass over one unit, behind a short prompt: the least of some passes, since other work on
    the machine makes them longer, and never shorter.
    """
    return pass_seconds(target, _prompt(target), (1,), REPEATS, min)[1]


def _prompt(target: Target) -> Tensor:
    """A prompt of one row, where a target's passes run; on the CPU for a target that runs no model."""
    model = target.model if isinstance(target, RunsModel) else None
    weight = None if model is None else next(model.parameters(), None)
    device = None if weight is None else device_of(model) if weight.is_meta else weight.device
    return torch.zeros(1, PROMPT, dtype=torch.int64, device=device)
