"""How long a benchmark will take, estimated from one measured call and said before it begins."""

from collections.abc import Callable
from dataclasses import dataclass

from mmspec.bench.race import Run


@dataclass(frozen=True)
class Plan:
    """What is ahead.

    Attributes:
        calls: How often the bar moves.
        seconds: Estimate of all of it.
        quick: Estimate of what `--quick` would take instead; None where this is quick.
    """

    calls: int
    seconds: float
    quick: float | None = None

    def __str__(self) -> str:
        shorter = "" if self.quick is None else f"; --quick takes {_about(self.quick)}"
        return f"{_about(self.seconds)} on this machine{shorter}"


def planned(calls: int, work: float, quick: float | None, once: Callable[[], Run]) -> Plan:
    """A plan from one measured call of plain decoding.

    Args:
        calls: How often the bar moves.
        work: All that is ahead, in calls like `once`.
        quick: What `--quick` would do instead, in the same; None where this is quick.
        once: Makes such a call; it is called twice, and the second counts.
    """
    once()
    each = once().seconds
    return Plan(calls, work * each, None if quick is None else quick * each)


def _about(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"about {minutes} minute{'s' * (minutes > 1)}" if minutes else "less than a minute"
