"""`goodput`: the depth that promises most units per second, from what rounds really cost and really brought.

SmartSpec (arXiv 2406.14066): goodput(d) = units(d) / seconds(d), where units(d) = 1 + a_1 + a_1 a_2 + … + a_1 … a_d and
a_j is the chance that depth j is accepted when depth j - 1 was. Seconds are measured: the median of recent rounds of
that depth, per number of rows (in powers of two); depths in between and beyond lie on a straight line. No model of the
hardware, no constants of one. Plain decoding (depth 0) is a candidate like the others, and wins at a large batch.

A batch ends with its last row, so the half of the rows that is furthest behind is asked what drafts bring.

Decides from settled rounds only, so every rule stays exact; under `match` the output cannot change. The candidates are
few and fixed: nothing recompiles.
Knobs: `gain` (higher changes depth less often), `probe` (higher looks at other depths less often), `memory` (higher is
steadier and follows a text more slowly).
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Annotated, ClassVar

from pydantic import Field

from mmspec.core.types import Draft

LAPS = 3
"""Visits of each depth of the warm-up; the first of them is not measured."""

RECENT = 9
"""Rounds of one depth that its median looks at."""


@dataclass(frozen=True)
class GoodputOptions:
    """Options of the policy `goodput`."""

    gain: Annotated[float, Field(ge=0, le=1)] = field(
        default=0.05, metadata={"help": "change depth only for this share more units per second; higher changes less"}
    )
    probe: Annotated[int, Field(ge=2)] = field(
        default=16, metadata={"help": "rounds between looks at another depth; higher looks less often"}
    )
    memory: Annotated[int, Field(ge=1)] = field(
        default=32, metadata={"help": "rounds that acceptance remembers; higher is steadier and slower to follow"}
    )


@dataclass
class Load:
    """What is known of rounds of about as many rows.

    Attributes:
        visits: Depths that the warm-up still has to see.
        seconds: Recent wall times by depth; empty where only the first round was seen, which may have compiled.
        depth: The depth in use; None during the warm-up.
        rounds: Rounds since the warm-up.
        probes: Looks at other depths so far.
    """

    visits: list[int]
    seconds: dict[int, deque[float]] = field(default_factory=dict)
    depth: int | None = None
    rounds: int = 0
    probes: int = 0

    def time(self, depth: int, seconds: float) -> None:
        """Note a round's wall time."""
        if depth not in self.seconds:
            self.seconds[depth] = deque(maxlen=RECENT)
        else:
            self.seconds[depth].append(seconds)

    def cost(self, depth: int) -> float:
        """Seconds of a round of that depth: measured, or on the line between its measured neighbours."""
        # Disturbances only ever add time, hence the lower median.
        known = sorted((d, median_low(times)) for d, times in self.seconds.items() if times)
        if not known:
            return 1.0
        at = bisect_left(known, (depth, 0.0))
        if len(known) == 1 or at == 0:
            return known[0][1]
        at = min(at, len(known) - 1)  # beyond what was measured, the last line goes on
        (low, below), (high, above) = known[at - 1], known[at]
        return below + (above - below) * (depth - low) / (high - low)


class Goodput:
    """See the module. One object serves all calls of a decoder: what it learnt stays.

    Args:
        k: Most units to draft.
        options: Hysteresis, probing, memory.

    Attributes:
        depths: The candidates: 0, the powers of two below `k`, and `k`.
        clocked: Its budgets follow measured times.
    """

    clocked: ClassVar[bool] = True

    def __init__(self, k: int, options: GoodputOptions = GoodputOptions()) -> None:
        self.options = options
        self.depths = sorted({0, k, *(2**i for i in range(k.bit_length()) if 2**i < k)})
        self._tried, self._taken = [0.0], [0.0]  # as deep as rounds were
        self._loads: dict[int, Load] = {}
        self._next = k

    def budget(self) -> int:
        return self._next

    def trim(self, draft: Draft) -> Draft:
        return draft

    def observe(self, depth: int, emitted: Sequence[int], seconds: float) -> None:
        load = self._loads.setdefault(len(emitted).bit_length(), Load(self._tour(len(emitted))))
        active = [n for n in emitted if n]
        self._count(depth, active[: (len(active) + 1) // 2])
        # A drafter that was asked and had nothing to say: such a round is neither plain nor one of that depth.
        if depth or not self._next:
            load.time(depth, seconds)
        self._next = self._plan(load)

    def units(self, depth: int) -> float:
        """Expected units of a row in a round of that depth."""
        expected = reached = chance = 1.0
        known = min(depth, len(self._tried) - 1)
        for d in range(1, known + 1):
            # Weighs as one try that went as it does one unit earlier: depths without data follow the shallower ones.
            chance = (self._taken[d] + chance) / (self._tried[d] + 1)
            reached *= chance
            expected += reached
        beyond = depth - known  # a geometric series
        return expected + reached * (beyond if chance == 1 else chance * (1 - chance**beyond) / (1 - chance))

    def _tour(self, rows: int) -> list[int]:
        """The deepest drafts are tried by a row alone only: in a batch they are seldom right and cost most."""
        middle, deepest = self.depths[len(self.depths) // 2], self.depths[-1]
        return sorted({0, middle, deepest if rows == 1 else 0}, reverse=True) * LAPS

    def _count(self, depth: int, emitted: Sequence[int]) -> None:
        """Depth d was tried where depth d - 1 was accepted, and taken where more than d units came."""
        keep, new = 1 - 1 / self.options.memory, depth + 1 - len(self._tried)
        self._tried += [0.0] * new
        self._taken += [0.0] * new
        for d in range(1, depth + 1):
            tried = sum(n >= d for n in emitted)
            if tried:
                self._tried[d] = keep * self._tried[d] + tried
                self._taken[d] = keep * self._taken[d] + sum(n > d for n in emitted)

    def _plan(self, load: Load) -> int:
        if load.visits:
            return load.visits.pop(0)
        goodput = {d: self.units(d) / load.cost(d) for d in self.depths}
        best = max(goodput, key=goodput.__getitem__)
        if load.depth is None or goodput[best] > (1 + self.options.gain) * goodput[load.depth]:
            load.depth = best
        load.rounds += 1
        return self._probe(load, load.depth) if load.rounds % self.options.probe == 0 else load.depth

    def _probe(self, load: Load, depth: int) -> int:
        """One of the neighbours of the depth in use and 0, in turn."""
        at = self.depths.index(depth)
        around = {*self.depths[max(0, at - 1) : at + 2], 0} - {depth}
        load.probes += 1
        return sorted(around)[load.probes % len(around)] if around else depth
