"""`goodput`: the depth that promises most units per second, from what rounds really cost and really brought.

SmartSpec (arXiv 2406.14066): goodput(d) = units(d) / seconds(d), where units(d) = 1 + a_1 + a_1 a_2 + … + a_1 … a_d and
a_j is the chance that depth j is accepted when depth j - 1 was. Seconds are measured: the median of recent rounds of
that depth, per number of rows (in powers of two); depths in between and beyond lie on a straight line. No model of the
hardware, no constants of one. Plain decoding (depth 0) is a candidate like the others, and wins at a large batch.

A batch ends with its last row, so the half of the rows that is furthest behind is asked what drafts bring. A drafter
may have nothing to say: such a round brings one unit and costs the asking, which is part of what a depth costs.

It learns while it decodes: a first call begins with drafts of middling depth and a few plain rounds, no more, and goes
deeper where what it saw promises that. Looks at other depths become rarer while they lose.

Decides from settled rounds only, so every rule stays exact; under `match` the output cannot change. The candidates are
few and fixed: nothing recompiles.
Knobs: `gain` (higher changes depth less often), `probe` (higher looks at other depths less often), `memory` (higher is
steadier and follows a text more slowly).
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Annotated, ClassVar

from pydantic import Field

from mmspec.core.types import Draft

LAPS = 3
"""Visits of each depth of the warm-up; the first of them is not measured."""

SOONEST = 4
"""Rounds until another depth is looked at first; later `probe`, and as many as `RAREST` times that while it loses."""
RAREST = 4
"""In times of `probe`."""

RECENT = 9
"""Rounds of one depth that its median looks at."""


@dataclass(frozen=True)
class GoodputOptions:
    """Options of the policy `goodput`."""

    gain: Annotated[float, Field(ge=0, le=1)] = field(
        default=0.05, metadata={"help": "change depth only for this share more units per second; higher changes less"}
    )
    probe: Annotated[int, Field(ge=2)] = field(
        default=16,
        metadata={"help": "rounds between looks at another depth; higher looks less often, and losing makes it rarer"},
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
        silent: Recent wall times of rounds in which the drafter was asked and had nothing to say.
        depth: The depth in use; None during the warm-up.
        rounds: Rounds since the warm-up.
        looked: When each depth was last looked at, in these rounds.
        wait: Rounds from one look at a depth to the next.
    """

    visits: list[int]
    seconds: dict[int, deque[float]] = field(default_factory=dict)
    silent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    depth: int | None = None
    rounds: int = 0
    looked: Counter[int] = field(default_factory=Counter)
    wait: dict[int, int] = field(default_factory=dict)

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
        line = below + (above - below) * (depth - low) / (high - low)
        return max(line, min(below, above))  # a line between disturbed measurements may lead to less than nothing


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
        self._keep = 1 - 1 / options.memory
        self._asked = self._silent = 0.0
        self._middle = self.depths[len(self.depths) // 2]
        self._next = self._middle

    def budget(self) -> int:
        return self._next

    def trim(self, draft: Draft) -> Draft:
        return draft

    def observe(self, depth: int, emitted: Sequence[int], seconds: float) -> None:
        load = self._loads.setdefault(len(emitted).bit_length(), Load(self._tour()))
        active = [n for n in emitted if n]
        behind = active[: (len(active) + 1) // 2]
        asked = self._next > 0
        self._count(depth, behind)
        if asked:
            self._asked = self._keep * self._asked + 1
            self._silent = self._keep * self._silent + (depth == 0)
        # A drafter that was asked and had nothing to say: such a round is neither plain nor one of that depth.
        if asked and not depth:
            load.silent.append(seconds)
        else:
            load.time(depth, seconds)
        if load.depth is not None and self._next != load.depth and behind:
            self._wait(load, won=sum(behind) / len(behind) > seconds * self.goodput(load, load.depth))
        self._next = self._plan(load)

    def goodput(self, load: Load, depth: int) -> float:
        """Expected units a second of a row, where drafts of that depth are asked for."""
        units, cost = self.units(depth), load.cost(depth)
        if depth and load.silent:
            share = self._silent / self._asked
            units += share * (1 - units)
            cost += share * (median_low(load.silent) - cost)
        return units / cost

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

    def _tour(self) -> list[int]:
        """The middle and 0; the deepest drafts are seldom right and cost most, so they wait until they promise more."""
        return [self._middle] * (LAPS - 1) + [0] * LAPS  # the round that asks for it was the first

    def _count(self, depth: int, emitted: Sequence[int]) -> None:
        """Depth d was tried where depth d - 1 was accepted, and taken where more than d units came."""
        new = depth + 1 - len(self._tried)
        self._tried += [0.0] * new
        self._taken += [0.0] * new
        for d in range(1, depth + 1):
            tried = sum(n >= d for n in emitted)
            if tried:
                self._tried[d] = self._keep * self._tried[d] + tried
                self._taken[d] = self._keep * self._taken[d] + sum(n > d for n in emitted)

    def _plan(self, load: Load) -> int:
        if load.visits:
            return load.visits.pop(0)
        goodput = {d: self.goodput(load, d) for d in self.depths}
        best = max(goodput, key=goodput.__getitem__)
        if load.depth is None or goodput[best] > (1 + self.options.gain) * goodput[load.depth]:
            load.depth = best
        load.rounds += 1
        return self._look(load, load.depth)

    def _look(self, load: Load, depth: int) -> int:
        """The depth in use; or, where it is time for a look, one of its neighbours or 0."""
        at, soonest = self.depths.index(depth), min(SOONEST, self.options.probe)
        around = {*self.depths[max(0, at - 1) : at + 2], 0} - {depth}
        late = {d: load.rounds - load.looked[d] - load.wait.get(d, soonest) for d in sorted(around)}
        other = max(late, key=late.__getitem__, default=depth)
        if other == depth or late[other] < 0:
            return depth
        load.looked[other] = load.rounds
        return other

    def _wait(self, load: Load, won: bool) -> None:
        """The next look comes sooner after a round that brought more than the depth in use does, else later."""
        now, soonest = load.wait.get(self._next, 0), min(SOONEST, self.options.probe)
        later = max(2 * now, self.options.probe)
        load.wait[self._next] = max(soonest, now // 2) if won else min(later, RAREST * self.options.probe)
