"""`goodput`: the draft depth with the most expected units per second, from measured times and acceptance.

SmartSpec (arXiv 2406.14066): goodput(d) = units(d) / seconds(d), where units(d) = 1 + a_1 + a_1 a_2 + … + a_1 … a_d and
a_j is the probability that depth j is accepted if depth j - 1 was. Seconds are measured: the median of recent rounds of
that depth, per number of rows (in powers of two), with linear interpolation and extrapolation between depths. There is
no model of the hardware. Plain decoding (depth 0) is a candidate like the others, and wins at a large batch.

A batch ends with its last row, so acceptance is measured on the half of the rows that has the fewest units. If the
drafter proposes nothing in a round, that round emits one unit and costs its time: this is part of a depth's cost.

The policy learns while it decodes. A first call warms up with drafts of middle depth and a few plain rounds, and goes
deeper if the estimates promise more. Other depths are probed more rarely while they lose.

Decisions depend on settled rounds only, so every rule stays exact; under `match` the output cannot change. The
candidates are few and fixed: nothing recompiles.
Knobs: `gain` (higher changes depth less often), `probe` (higher probes other depths less often), `memory` (higher is
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

WARM_UP_VISITS = 3
"""Rounds of each depth of the warm-up; the first one is not measured, as it may compile."""

SHORTEST_WAIT = 4
"""Rounds until another depth is probed for the first time; later `probe` rounds, and more while it loses."""
LONGEST_WAIT = 4
"""Most rounds between two probes of a depth, in multiples of `probe`."""

RECENT = 9
"""Rounds of a depth over which its median is taken."""


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
    """Measurements of rounds with about the same number of rows.

    Attributes:
        visits: Depths that the warm-up still has to visit.
        seconds: Recent wall times by depth; empty if only the first round was seen, which may have compiled.
        silent: Recent wall times of rounds in which the drafter was asked and proposed nothing.
        depth: The depth in use; None during the warm-up.
        rounds: Rounds since the warm-up.
        probed: The round in which each depth was last probed.
        wait: Rounds from one probe of a depth to the next.
    """

    visits: list[int]
    seconds: dict[int, deque[float]] = field(default_factory=dict)
    silent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    depth: int | None = None
    rounds: int = 0
    probed: Counter[int] = field(default_factory=Counter)
    wait: dict[int, int] = field(default_factory=dict)

    def time(self, depth: int, seconds: float) -> None:
        """Note a round's wall time."""
        if depth not in self.seconds:
            self.seconds[depth] = deque(maxlen=RECENT)
        else:
            self.seconds[depth].append(seconds)

    def cost(self, depth: int) -> float:
        """Seconds of a round of that depth: measured, or interpolated between measured depths."""
        # Disturbances only add time, hence the lower median.
        known = sorted((d, median_low(times)) for d, times in self.seconds.items() if times)
        if not known:
            return 1.0
        at = bisect_left(known, (depth, 0.0))
        if len(known) == 1 or at == 0:
            return known[0][1]
        at = min(at, len(known) - 1)  # beyond the largest measured depth, extrapolate
        (low, below), (high, above) = known[at - 1], known[at]
        line = below + (above - below) * (depth - low) / (high - low)
        return max(line, min(below, above))  # noisy measurements may extrapolate to a negative time


class Goodput:
    """See the module. One object serves all calls of a decoder, and keeps its measurements between them.

    Args:
        k: Most units to draft.
        options: Hysteresis, probing, memory.

    Attributes:
        depths: The candidates: 0, the powers of two below `k`, and `k`.
        clocked: Budgets depend on measured times.
    """

    clocked: ClassVar[bool] = True

    def __init__(self, k: int, options: GoodputOptions = GoodputOptions()) -> None:
        self.options = options
        self.depths: list[int] = sorted({0, k, *(2**i for i in range(k.bit_length()) if 2**i < k)})
        self._tried, self._taken = [0.0], [0.0]  # by depth, discounted counts
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
        load = self._loads.setdefault(len(emitted).bit_length(), Load(self._warm_up()))
        active = [n for n in emitted if n]
        behind = active[: (len(active) + 1) // 2]
        asked = self._next > 0
        self._count(depth, behind)
        if asked:
            self._asked = self._keep * self._asked + 1
            self._silent = self._keep * self._silent + (depth == 0)
        # The drafter was asked and proposed nothing: such a round is neither plain nor one of the depth asked for.
        if asked and not depth:
            load.silent.append(seconds)
        else:
            load.time(depth, seconds)
        if load.depth is not None and self._next != load.depth and behind:
            self._set_wait(load, won=sum(behind) / len(behind) > seconds * self.goodput(load, load.depth))
        self._next = self._plan(load)

    def goodput(self, load: Load, depth: int) -> float:
        """Expected units per second of a row, if drafts of that depth are asked for."""
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
            # The prior is one try with the previous depth's probability: depths without data follow shallower ones.
            chance = (self._taken[d] + chance) / (self._tried[d] + 1)
            reached *= chance
            expected += reached
        beyond = depth - known  # depths without data: a geometric series
        return expected + reached * (beyond if chance == 1 else chance * (1 - chance**beyond) / (1 - chance))

    def _warm_up(self) -> list[int]:
        """Visit the middle depth and 0; deeper drafts are tried only if the estimates promise more."""
        return [self._middle] * (WARM_UP_VISITS - 1) + [0] * WARM_UP_VISITS  # the current round is the first visit

    def _count(self, depth: int, emitted: Sequence[int]) -> None:
        """Depth d was tried in rows that accepted depth d - 1, and accepted in rows that emitted more than d units."""
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
        return self._depth_or_probe(load, load.depth)

    def _depth_or_probe(self, load: Load, depth: int) -> int:
        """The depth in use; or, if a probe is due, one of its neighbours or 0."""
        at, shortest = self.depths.index(depth), min(SHORTEST_WAIT, self.options.probe)
        others = {*self.depths[max(0, at - 1) : at + 2], 0} - {depth}
        overdue = {d: load.rounds - load.probed[d] - load.wait.get(d, shortest) for d in sorted(others)}
        other = max(overdue, key=overdue.__getitem__, default=depth)
        if other == depth or overdue[other] < 0:
            return depth
        load.probed[other] = load.rounds
        return other

    def _set_wait(self, load: Load, won: bool) -> None:
        """Probe the current depth again sooner if the probe beat the depth in use, else later."""
        wait, shortest = load.wait.get(self._next, 0), min(SHORTEST_WAIT, self.options.probe)
        longer = max(2 * wait, self.options.probe)
        load.wait[self._next] = max(shortest, wait // 2) if won else min(longer, LONGEST_WAIT * self.options.probe)
