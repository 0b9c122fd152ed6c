"""What the policy `goodput` measured of rounds with about the same number of rows."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median, median_low

from mmspec.core.step_costs import on_line

RECENT = 9
"""Rounds of a depth over which its median is taken."""


@dataclass
class Load:
    """Measurements of rounds with about the same number of rows."""

    depths: list[int]  # the candidates
    visits: list[int]  # depths that the warm-up still has to visit
    table: Callable[[int], float] | None = None  # seconds by depth that were measured before; None: there is no table
    # Recent wall times by depth; empty if only the first round was seen, which may have compiled
    seconds: dict[int, deque[float]] = field(default_factory=dict)
    # Recent wall times of rounds in which the drafter was asked and proposed nothing
    silent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    depth: int | None = None  # the depth in use; None during the warm-up
    rounds: int = 0  # rounds since the warm-up
    probed: Counter[int] = field(default_factory=Counter)  # the round in which each depth was last probed
    wait: dict[int, int] = field(default_factory=dict)  # rounds from one probe of a depth to the next

    def time(self, depth: int, seconds: float) -> None:
        """Note a round's wall time."""
        if depth not in self.seconds:
            self.seconds[depth] = deque(maxlen=RECENT)
        else:
            self.seconds[depth].append(seconds)

    def cost(self, depth: int) -> float:
        """Seconds of a round of that depth: measured, or else from the table, or between measured depths."""
        # Disturbances only add time, hence the lower median.
        known = sorted((d, median_low(times)) for d, times in self.seconds.items() if times)
        if self.table is not None:
            return self._by_table(dict(known), self.table, depth)
        return on_line(known, depth) if known else 1.0

    def _by_table(self, known: dict[int, float], table: Callable[[int], float], depth: int) -> float:
        """The measured seconds; of a depth that was not measured, the table's times how much slower rounds are here."""
        if depth in known:
            return known[depth]
        slower = median(seconds / table(d) for d, seconds in known.items()) if known else 1.0
        return slower * table(depth)
