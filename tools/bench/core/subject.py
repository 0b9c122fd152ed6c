"""A shape under measurement, and the sizes at which it is measured."""

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from mmspec.api.build import decoder_for
from mmspec.bench.timing import timed
from mmspec.core.decoder import Decoder
from mmspec.report.result import PLAIN
from mmspec_text.plan.work import Machine
from tools.bench.core.sections import Lines
from tools.bench.core.shape import Shape, Workload

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "eager": {"compile": False},
    "compiled": {"compile": True},
}
"""The ways to run a round, as arguments of `Decoder`. Elsewhere than on CUDA the default is eager, and compiling takes
minutes: there, the default alone is measured.

In races one with `compiled` in its name gets more time to warm up, after the first turns of the others.
"""

SPARE = 0.8
"""The share of a GPU's free memory that caches may take; the rest is for the scores and for what passes compute."""


@dataclass(frozen=True)
class Sizes:
    nodes: tuple[int, ...] = (1, 8, 16, 32, 64, 128)  # nodes of passes and rounds
    rows: tuple[int, ...] = (1, 8, 64)  # rows of the batch
    # Units of context, the smallest first; rounds and races run at the smallest
    contexts: tuple[int, ...] = (512, 4096, 32768)
    repeats: int = 10  # measured passes or rounds, of which the median counts
    new: int = 64  # units that a contestant of the race emits
    races: int = 3  # repeats of the race
    compiles: bool = True  # whether `generate` takes part compiled, too, which takes minutes on a CPU

    def of(self, shape: Shape) -> "Sizes":
        """These sizes, as far as a shape has them."""
        return replace(self, nodes=shape.nodes or self.nodes, contexts=shape.contexts or self.contexts)


SMALL = Sizes(nodes=(1, 8, 16), rows=(1, 2), contexts=(32, 96), repeats=3, new=16, races=2, compiles=False)
"""What a CPU measures of stand-ins."""


@dataclass
class Subject:
    shape: Shape
    workload: Workload  # its live model
    sizes: Sizes  # what is measured
    machine: Machine  # the limits of the device
    device: torch.device
    lines: Lines  # the figures

    def __post_init__(self) -> None:
        self.work = self.workload.work()
        self.target: Any = decoder_for(self.workload.model, PLAIN).target

    @property
    def variants(self) -> list[str]:
        """The ways to run a round that are measured, those that need no compiler first."""
        return list(VARIANTS) if self.device.type == "cuda" else ["default"]

    @property
    def trees(self) -> bool:
        return "tree" in self.target.offers

    def say(self, section: str, **figures: Any) -> None:
        self.lines.say(section, shape=self.shape.name, **figures)

    def read(self, rows: int, nodes: int, context: int) -> float:
        """Bytes that a pass of the target reads."""
        return self.workload.passes * self.work.read(rows, nodes * self.workload.units, context)

    def computed(self, rows: int, nodes: int) -> float:
        """Operations of a pass of the target."""
        return self.workload.passes * self.work.computed(rows, nodes * self.workload.units)

    def floor(self, rows: int, nodes: int, context: int) -> float:
        """The least seconds of a pass of the target."""
        return self.workload.passes * self.work.floor(self.machine, rows, nodes * self.workload.units, context)

    def calls(self, contexts: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        """Rows and context of every call that fits the memory, the smallest calls first."""
        pairs = ((rows, context) for context in contexts for rows in self.sizes.rows)
        for rows, context in sorted(pairs, key=lambda pair: pair[0] * pair[1]):
            needed, free = self.work.memory(rows, context), self._free()
            if needed > SPARE * free:
                lacking = f"a cache of {needed / 1e9:.1f} GB does not fit {SPARE:.0%} of {free / 1e9:.1f} free GB"
                self.say("skipped", rows=rows, context=context, why=lacking)
            else:
                yield rows, context

    def seconds(self, work: Callable[[], Any], warm_up: int = 2) -> float:
        """Median wall seconds of a piece of work, the device's work included."""
        for _ in range(warm_up):
            work()
        return statistics.median(timed(work, str(self.device)) for _ in range(self.sizes.repeats))

    def autocast(self) -> AbstractContextManager[Any]:
        wanted = self.workload.autocast
        return nullcontext() if wanted is None else torch.autocast(self.device.type, wanted)

    def decoder(self, *parts: Any, **options: Any) -> Decoder:
        """A decoder of the target; passes have one shape where the target can."""
        return Decoder(self.target, *parts, shape="any" if self.workload.truth else "one", **options)

    def _free(self) -> float:
        if self.device.type != "cuda":
            return float("inf")
        torch.cuda.empty_cache()
        return float(torch.cuda.mem_get_info(self.device)[0])
