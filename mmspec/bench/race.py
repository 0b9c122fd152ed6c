"""Paired timing: all contestants decode the same tasks in one process, in turns, so that disturbances hit all.

A repeat goes through all tasks. On every task all contestants run one after the other; which one begins rotates from
task to task. The warm-up (compilation, tables, caches of the allocator) is not counted. A contestant with settings runs
in the best one: the fastest on a small share of the tasks (`tune`).
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
    seconds: float  # wall-clock seconds, the device's work included
    units: Sequence[Tensor]  # emitted units, one tensor per row
    report: Report | None = None  # the report of our decoder; None for other software

    @property
    def emitted(self) -> int:
        return sum(len(row) for row in self.units)


Contestant = Callable[[Any], Run]
REPEATS = 2  # counted repeats of `tune`; the smallest sum counts, since disturbances only add time


@dataclass
class Track:
    runs: list[list[Run]] = field(default_factory=list)  # runs by repeat, then by task
    failure: str = ""  # the reason why there are no runs, or ""

    @property
    def repeats_s(self) -> list[float]:
        """Seconds of every repeat, summed over its tasks."""
        return [sum(run.seconds for run in repeat) for repeat in self.runs]

    @property
    def every(self) -> list[Run]:
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
    """Run all contestants, by name, `repeats` times over all tasks, after one warm-up over them that is not counted.

    Tasks are arguments of the contestants, one per call. In the warm-up contestants run in order: later ones may use
    the output of the first one. Those in `optional` may fail there; their track keeps the reason, and they do not run
    again. `tick` is called after every call of a contestant.
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
    """As `race`, but every repeat has tasks of its own: ratios stay paired, and their spread covers the tasks, too."""
    tracks = {name: Track() for name in contestants}
    for leg, tasks in enumerate((warm_up, *legs)):
        finished: dict[str, list[Run]] = {name: [] for name in contestants}
        for turn, task in enumerate(tasks):
            for name in rotated(list(contestants), turn * (leg > 0)):
                if not tracks[name].failure:
                    run = _guarded(contestants[name], task, tracks[name], name in optional and leg == 0)
                    finished[name] += [run] if run else []
                tick()
        if leg:
            for name, runs in finished.items():
                if not tracks[name].failure:
                    tracks[name].runs.append(runs)
    return tracks


def rotated(names: list[str], by: int) -> list[str]:
    """The names in turn, from the one at place `by` on."""
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


@dataclass(frozen=True)
class Tuned:
    way: Contestant  # the contestant in its fastest setting
    chosen: str  # name of that setting
    # Seconds of every setting on the calibration share, by name; settings that failed are left out
    tried: Mapping[str, float] = field(default_factory=dict)


def tune(ways: Mapping[str, Contestant], share: Sequence[Any], tick: Callable[[], None] = lambda: None) -> Tuned:
    """The fastest of some settings, by its contestant in `ways`; a single one is not tried; if all fail, the first is
    taken, and the race says why.
    """
    if len(ways) == 1:
        ((only, way),) = ways.items()
        return Tuned(way, only)
    tracks = race(ways, share, REPEATS, optional=ways, tick=tick)
    tried = {name: min(track.repeats_s) for name, track in tracks.items() if not track.failure}
    chosen = min(tried, key=tried.__getitem__) if tried else next(iter(ways))
    return Tuned(ways[chosen], chosen, {name: round(seconds, 6) for name, seconds in tried.items()})


def tuning_calls(ways: int, share: int) -> int:
    """Number of calls of `tick` that `tune` makes."""
    return ways * share * (1 + REPEATS)


@dataclass(frozen=True)
class Plan:
    calls: int  # number of steps of the progress bar
    seconds: float  # estimated seconds of the whole benchmark
    quick: float | None = None  # estimated seconds with `--quick`; None if this is the quick one

    def __str__(self) -> str:
        shorter = "" if self.quick is None else f"; --quick takes {_about(self.quick)}"
        return f"{_about(self.seconds)} on this machine{shorter}"


def planned(calls: int, work: float, quick: float | None, once: Callable[[], Run]) -> Plan:
    """A plan, estimated from one measured call of plain decoding.

    The whole benchmark takes as long as `work` calls of `once`, and with `--quick` as `quick` of them; that is None if
    this is the quick one. `once` runs twice, and the second run counts.
    """
    once()
    each = once().seconds
    return Plan(calls, work * each, None if quick is None else quick * each)


def _about(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"about {minutes} minute{'s' * (minutes > 1)}" if minutes else "less than a minute"
