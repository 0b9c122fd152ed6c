"""Who draws: our methods through a `Decoder`, an oracle, the rows of a batch one by one, and loops of others."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from mmspec.api.build import decoder_for
from mmspec.bench.race import Run
from mmspec.bench.rows import Footprint
from mmspec.bench.timing import synchronize
from mmspec.core.decoder import Decoder
from mmspec.core.report import Report
from mmspec.core.state import State
from mmspec.core.warp import Warp
from mmspec.report.result import PLAIN
from tools.bench.memory import footprint
from tools.bench.pictures.tasks import Task
from tools.bench.stand_ins import Oracle

ROUNDS = 8
"""Rounds in which memory is watched: the profiler is slow."""


@dataclass(frozen=True)
class Drawn(Run):
    """A run that says which pass emitted which unit."""

    after: Sequence[Sequence[int]] = ()  # how many units every row had after the prefill, after the first pass, …


@dataclass(frozen=True)
class PictureSampler:
    """Draws all units of a task's pictures with a decoder; what is decoded from the units is not timed."""

    model: Any  # the transformer; `cells` says how many units a picture has
    warp: Warp = field(default_factory=Warp)  # from logits to distributions

    def __call__(self, decoder: Decoder, task: Task) -> Drawn:
        device, after = str(self.model.device), list[list[int]]()

        def count(state: State) -> None:
            after.append(list(state.host.emitted))

        synchronize(device)
        began = time.perf_counter()
        output = decoder.generate(
            task.condition, self.model.cells, seed=list(task.seeds), warp=self.warp, on_step=count
        )
        synchronize(device)
        seconds = time.perf_counter() - began
        return Drawn(seconds, [units.cpu() for units in output.units], output.report, after)


@dataclass
class OwnMethod:
    """One of our methods. Every call has a new drafter: nothing is remembered from picture to picture."""

    sampler: PictureSampler  # how pictures are drawn
    # Arguments of `decoder_for`: `method`, `k`, …
    options: Mapping[str, Any] = field(default_factory=lambda: {"method": PLAIN})
    # Receives the units that were drawn, by seeds; for the oracle
    truth: dict[tuple[int, ...], list[int]] | None = None

    def __call__(self, task: Task) -> Drawn:
        drawn = self.sampler(decoder_for(self.sampler.model, **self.options), task)
        if self.truth is not None:
            self.truth[task.seeds] = drawn.units[0].tolist()
        return drawn

    def begin(self, task: Task, rounds: int) -> None:
        """Allocate room for whole pictures and decode their first rounds."""
        model = self.sampler.model
        states = decoder_for(model, **self.options).rounds(
            task.condition, model.cells, seed=task.seeds, warp=self.sampler.warp
        )
        for _ in islice(states, 1 + rounds):  # the prefill, then rounds
            pass


def memory_of(ours: Mapping[str, OwnMethod], task: Task, device: str, tick: Callable[[], None]) -> dict[str, Footprint]:
    """What the transformer and a call's first rounds take, by method."""
    found = {}
    for name, method in ours.items():
        found[name] = footprint(partial(method.begin, task, ROUNDS), [method.sampler.model], device)
        tick()
    return found


@dataclass
class OracleDecoding:
    """Drafts are what plain decoding draws: the most that this window, this target and this loop can give."""

    plain: OwnMethod  # plain decoding, with `truth`
    k: int  # units drafted per round

    def __call__(self, task: Task) -> Drawn:
        assert self.plain.truth is not None
        if task.seeds not in self.plain.truth:  # the oracle's turn comes first
            self.plain(task)
        drafter = Oracle({(): self.plain.truth[task.seeds]})  # prompts have no units
        sampler = self.plain.sampler
        return sampler(decoder_for(sampler.model, drafter=drafter, k=self.k), task)


@dataclass
class RowByRow:
    """The rows of a batch, each alone."""

    method: OwnMethod  # draws them
    rows: Sequence[Task]  # the batch's rows as tasks of their own

    def __call__(self, task: Task) -> Run:
        runs = [self.method(row) for row in self.rows]
        return Run(sum(run.seconds for run in runs), [run.units[0] for run in runs], Report())


@dataclass(frozen=True)
class Other:
    """A contestant beside plain decoding and our methods."""

    run: Callable[[Task], Run]  # draws the pictures of a task
    mode: str = "real"  # as in `mmspec.report.result.Row`; only `real` rows are judged by their pictures.
    options: Mapping[str, Any] = field(default_factory=dict)  # what it was run with
    exactness: str | None = None  # of its row, where the rule's own is not what counts; None: the rule's own
    loop: str | None = None  # where it is another loop and no method: a note about it. It becomes a peer, and may fail.
