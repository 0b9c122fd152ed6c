"""Paired timing: all contestants decode the same tasks in one process, in turns, so that disturbances hit all.

A repeat goes through all tasks. On every task all contestants run one after the other; which one begins rotates from
task to task. The warm-up (compilation, tables, caches of the allocator) is not counted.
"""

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from mmspec.core.report import Report
from mmspec.registry.printable import first_line


@dataclass(frozen=True)
class Run:
    """One timed call."""

    seconds: float  # wall-clock seconds, the device's work included
    units: Sequence[Tensor]  # emitted units, one tensor per row
    report: Report | None = None  # the report of our decoder; None for other software

    @property
    def emitted(self) -> int:
        """Number of emitted units, all rows together."""
        return sum(len(row) for row in self.units)


Contestant = Callable[[Any], Run]


@dataclass
class Track:
    """All runs of one contestant."""

    runs: list[list[Run]] = field(default_factory=list)  # runs by repeat, then by task
    failure: str = ""  # the reason why there are no runs, or ""

    @property
    def repeats_s(self) -> list[float]:
        """Seconds of every repeat, summed over its tasks."""
        return [sum(run.seconds for run in repeat) for repeat in self.runs]

    @property
    def every(self) -> list[Run]:
        """The runs of all repeats in one list."""
        return [run for repeat in self.runs for run in repeat]

    @property
    def median(self) -> list[Run]:
        """The runs of the repeat whose seconds are the (lower) median."""
        seconds = self.repeats_s
        return self.runs[seconds.index(statistics.median_low(seconds))]


def race(
    contestants: Mapping[str, Contestant],
    tasks: Sequence[Any],
    repeats: int,
    *,
    optional: Collection[str] = (),
    tick: Callable[[], None] = lambda: None,
) -> dict[str, Track]:
    """Run all contestants `repeats` times over all tasks, after one warm-up over them that is not counted.

    Args:
        contestants: Contestants by name. In the warm-up they run in this order: later ones may use the output of
            the first one.
        tasks: Arguments of the contestants, one per call.
        repeats: Number of repeats, at least 1.
        optional: Names of contestants that may fail in the warm-up; their track keeps the reason, and they do not run
            again.
        tick: Called after every call of a contestant.
    """
    return relay(contestants, [tasks] * repeats, tasks, optional=optional, tick=tick)


def relay(
    contestants: Mapping[str, Contestant],
    legs: Sequence[Sequence[Any]],
    warm_up: Sequence[Any],
    *,
    optional: Collection[str] = (),
    tick: Callable[[], None] = lambda: None,
) -> dict[str, Track]:
    """As `race`, but every repeat has tasks of its own: ratios stay paired, and their spread covers the tasks, too.

    Args:
        contestants: As in `race`.
        legs: The tasks of every repeat.
        warm_up: The tasks of the warm-up, which is not counted.
        optional: As in `race`.
        tick: As in `race`.
    """
    tracks = {name: Track() for name in contestants}
    for leg, tasks in enumerate((warm_up, *legs)):
        finished: dict[str, list[Run]] = {name: [] for name in contestants}
        for turn, task in enumerate(tasks):
            for name in _rotated(list(contestants), turn * (leg > 0)):
                if not tracks[name].failure:
                    run = _guarded(contestants[name], task, tracks[name], name in optional and leg == 0)
                    finished[name] += [run] if run else []
                tick()
        if leg:
            for name, runs in finished.items():
                if not tracks[name].failure:
                    tracks[name].runs.append(runs)
    return tracks


def _rotated(names: list[str], by: int) -> list[str]:
    by %= len(names)
    return names[by:] + names[:by]


def _guarded(contestant: Contestant, task: Any, track: Track, may_fail: bool) -> Run | None:
    try:
        return contestant(task)
    except Exception as error:
        if not may_fail:
            raise
        track.failure = first_line(error)
        return None
