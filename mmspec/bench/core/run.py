"""The benchmark of the core: every shape gets its share of the time, and so does every section of a shape."""

import gc
from collections.abc import Sequence
from functools import partial

import torch

from mmspec.bench.core.races import Race
from mmspec.bench.core.sections import Clock, Lines, run_section
from mmspec.bench.core.shape import Shape
from mmspec.bench.core.steps import passes, rounds
from mmspec.bench.core.subject import SMALL, Sizes, Subject
from mmspec.bench.core.work import Machine, measure_machine
from mmspec.bench.timing import describe, versions

SECTIONS = {"make": 2.0, "passes": 3.0, "rounds": 3.0, "race": 4.0}
"""The sections of a shape, in their order, with their shares of its time."""
STEPS = {"passes": passes, "rounds": rounds}
MACHINE_SHARE = 0.1
"""The largest share of the time for the machine's limits."""


def run(shapes: Sequence[Shape], device: torch.device, seconds: float, lines: Lines) -> None:
    """Measure shapes, one after the other; what fails or does not fit the time is a line.

    On CUDA they run in bfloat16 and in full size, elsewhere stand-ins in float32.
    """
    small = device.type != "cuda"
    dtype = torch.float32 if small else torch.bfloat16
    clock, limits = Clock.of(seconds), list[Machine]()
    about = {"device": describe(str(device)), "dtype": str(dtype).removeprefix("torch."), "versions": versions()}

    def machine() -> None:
        found = measure_machine(device, dtype, small)
        limits.append(found)
        rates = {"bytes_per_second": found.bandwidth, "operations_per_second": found.arithmetic}
        lines.say("machine", **about, **rates, launch_us=round(1e6 * found.launch, 3), small=small)

    with torch.no_grad():
        run_section(lines, "machine", MACHINE_SHARE * clock.left(), machine)
        by_name = {shape.name: shape for shape in shapes}
        for name, own in clock.shares(dict.fromkeys(by_name, 1.0)) if limits else ():
            measure(by_name[name], SMALL if small else Sizes(), limits[0], device, dtype, lines, own, small)
            free(device)
    lines.say("done", deadline=seconds)


def free(device: torch.device) -> None:
    """Give the memory of a shape back: its models, and graphs that were compiled for them."""
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def measure(
    shape: Shape,
    sizes: Sizes,
    machine: Machine,
    device: torch.device,
    dtype: torch.dtype,
    lines: Lines,
    clock: Clock,
    small: bool,
) -> None:
    """Measure one shape: make it, then its passes, rounds and races; arguments as in `run` and `Subject`."""
    made: list[Subject] = []

    def make() -> None:
        workload = shape.workload(device, dtype, small)
        made.append(Subject(shape, workload, sizes.of(shape), machine, device, lines))
        work = made[0].work
        made[0].say("shape", bytes=work.shared + work.routed, operations_per_unit=work.operations)

    for section, own in clock.shares(SECTIONS):
        about = {"shape": shape.name}
        if section == "make":
            run_section(lines, section, own.left(), make, **about)
        elif made and section == "race":  # it has sections of its own
            Race(made[0]).run(own)
        elif made:
            run_section(lines, section, own.left(), partial(STEPS[section], made[0]), **about)
