"""Every contestant runs in its best setting: of a small grid, the one that is fastest on a small share of the tasks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmspec.bench.race import Contestant, race

REPEATS = 2
"""Counted repeats; the smallest sum counts, since disturbances only add time."""


@dataclass(frozen=True)
class Tuned:
    """A contestant whose settings were tried."""

    way: Contestant  # the contestant in its fastest setting
    chosen: str  # name of that setting
    # Seconds of every setting on the calibration share, by name; settings that failed are left out
    tried: Mapping[str, float] = field(default_factory=dict)


def tune(ways: Mapping[str, Contestant], share: Sequence[Any], tick: Callable[[], None] = lambda: None) -> Tuned:
    """The fastest of some settings. A single one is not tried; if all fail, the first is taken, and the race says why.

    Args:
        ways: The contestant in each setting, by the setting's name; at least one.
        share: Tasks to try them on, in turns.
        tick: Called after every call.
    """
    if len(ways) == 1:
        ((only, way),) = ways.items()
        return Tuned(way, only)
    tracks = race(ways, share, REPEATS, optional=ways, tick=tick)
    tried = {name: min(track.repeats_s) for name, track in tracks.items() if not track.failure}
    chosen = min(tried, key=tried.__getitem__) if tried else next(iter(ways))
    return Tuned(ways[chosen], chosen, {name: round(seconds, 6) for name, seconds in tried.items()})


def calls_of(ways: int, share: int) -> int:
    """Number of calls of `tick` that `tune` makes."""
    return ways * share * (1 + REPEATS)
