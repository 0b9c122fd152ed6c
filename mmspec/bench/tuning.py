"""Everybody at their best: of a small grid of settings, the one that is fastest on a small share of the tasks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmspec.bench.race import Contestant, race

REPEATS = 2
"""Counted ones; the smaller sum counts, since what disturbs only adds."""


@dataclass(frozen=True)
class Tuned:
    """A contestant with its settings tried.

    Attributes:
        way: The contestant in its fastest setting.
        chosen: What that is called.
        tried: Seconds of every setting on the calibration share; those that failed are left out.
    """

    way: Contestant
    chosen: str
    tried: Mapping[str, float] = field(default_factory=dict)


def tune(ways: Mapping[str, Contestant], share: Sequence[Any], tick: Callable[[], None] = lambda: None) -> Tuned:
    """The fastest of some ways; one way needs no trial. Where all fail, the first: the race will say why.

    Args:
        ways: At least one, by what their settings are called.
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
    """How often `tick` will be called.

    Args:
        ways: How many are tried.
        share: Number of tasks.
    """
    return ways * share * (1 + REPEATS)
