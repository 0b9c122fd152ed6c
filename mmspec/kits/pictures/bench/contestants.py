"""Who draws: our methods through a `Decoder`, an oracle, and the rows of a batch one by one."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mmspec.api.build import decoder_for
from mmspec.bench.limits import synchronize
from mmspec.bench.memory import Footprint, footprint
from mmspec.bench.race import Run
from mmspec.bench.stand_ins import Oracle
from mmspec.core.decoder import Decoder
from mmspec.core.report import Report
from mmspec.core.state import State
from mmspec.core.warp import Warp
from mmspec.kits.pictures.bench.tasks import Task
from mmspec.report.result import PLAIN

ROUNDS = 8
"""Rounds in which memory is watched: the profiler is slow."""


@dataclass(frozen=True)
class Drawn(Run):
    """A run that says which pass emitted which unit.

    Attributes:
        after: How many units every row had after prefill, after the first pass, ….
    """

    after: Sequence[Sequence[int]] = ()


@dataclass(frozen=True)
class Call:
    """How pictures are drawn: the same for everybody.

    Attributes:
        model: The transformer; `cells` says how many units a picture has.
        warp: From logits to distributions.
    """

    model: Any
    warp: Warp

    def __call__(self, decoder: Decoder, task: Task) -> Drawn:
        """All units of the task's pictures; what is decoded from them is not on the clock."""
        device, after = str(self.model.device), list[list[int]]()

        def count(state: State) -> None:
            after.append(list(state.host_emitted))

        synchronize(device)
        began = time.perf_counter()
        made = decoder.generate(task.condition, self.model.cells, seed=list(task.seeds), warp=self.warp, on_step=count)
        synchronize(device)
        seconds = time.perf_counter() - began
        return Drawn(seconds, [units.cpu() for units in made.units], made.report, after)


@dataclass
class Ours:
    """One of our methods. A call is the drafter's first: nothing is remembered from picture to picture.

    Attributes:
        call: How pictures are drawn.
        options: Of `decoder_for`: `method`, `k`, ….
        truth: Receives what was drawn, by seeds; for the oracle.
    """

    call: Call
    options: Mapping[str, Any] = field(default_factory=lambda: {"method": PLAIN})
    truth: dict[tuple[int, ...], list[int]] | None = None

    def __call__(self, task: Task) -> Drawn:
        drawn = self.call(decoder_for(self.call.model, **self.options), task)
        if self.truth is not None:
            self.truth[task.seeds] = drawn.units[0].tolist()
        return drawn

    def begin(self, task: Task, rounds: int) -> None:
        """Room for whole pictures, and their first rounds."""
        decoder = decoder_for(self.call.model, **self.options)
        state = decoder.start(task.condition, self.call.model.cells, seed=task.seeds, warp=self.call.warp)
        for _ in range(rounds):
            if not state.finished:
                decoder.advance(state)


def memory_of(ours: Mapping[str, Ours], task: Task, device: str, tick: Callable[[], None]) -> dict[str, Footprint]:
    """What the transformer and a call's first rounds take, by method."""
    found = {}
    for name, contestant in ours.items():
        found[name] = footprint(partial(contestant.begin, task, ROUNDS), [contestant.call.model], device)
        tick()
    return found


@dataclass
class Knowing:
    """Drafts are what plain decoding draws: the most that this window, this target and this loop can give.

    Attributes:
        plain: Plain decoding, with `truth`.
        k: Units drafted per round.
    """

    plain: Ours
    k: int

    def __call__(self, task: Task) -> Drawn:
        assert self.plain.truth is not None
        if task.seeds not in self.plain.truth:  # the oracle's turn comes first
            self.plain(task)
        drafter = Oracle({(): self.plain.truth[task.seeds]})  # prompts have no units
        call = self.plain.call
        return call(decoder_for(call.model, drafter=drafter, k=self.k), task)


@dataclass
class OneByOne:
    """The rows of a batch, each alone.

    Attributes:
        contestant: Who draws them.
        rows: The batch's rows as tasks of their own.
    """

    contestant: Ours
    rows: Sequence[Task]

    def __call__(self, task: Task) -> Run:
        runs = [self.contestant(row) for row in self.rows]
        return Run(sum(run.seconds for run in runs), [run.units[0] for run in runs], Report())
