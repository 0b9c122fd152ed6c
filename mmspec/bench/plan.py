"""Estimate of a benchmark's time from one measured call; it is printed before the benchmark begins."""

from collections.abc import Callable
from dataclasses import dataclass

from mmspec.bench.race import Run


@dataclass(frozen=True)
class Plan:
    """The work of a benchmark."""

    calls: int  # number of steps of the progress bar
    seconds: float  # estimated seconds of the whole benchmark
    quick: float | None = None  # estimated seconds with `--quick`; None if this is the quick one

    def __str__(self) -> str:
        shorter = "" if self.quick is None else f"; --quick takes {_about(self.quick)}"
        return f"{_about(self.seconds)} on this machine{shorter}"


def planned(calls: int, work: float, quick: float | None, once: Callable[[], Run]) -> Plan:
    """A plan, estimated from one measured call of plain decoding.

    Args:
        calls: Number of steps of the progress bar.
        work: The whole benchmark, in multiples of the call `once`.
        quick: The benchmark with `--quick`, in the same multiples; None if this is the quick one.
        once: Makes one call; it runs twice, and the second run counts.
    """
    once()
    each = once().seconds
    return Plan(calls, work * each, None if quick is None else quick * each)


def _about(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"about {minutes} minute{'s' * (minutes > 1)}" if minutes else "less than a minute"
