"""`goodput`: the draft depth with the most expected units per second, from measured times and acceptance.

SmartSpec (arXiv 2406.14066): goodput(d) = units(d) / seconds(d), where units(d) = 1 + a_1 + a_1 a_2 + … + a_1 … a_d and
a_j is the probability that depth j is accepted if depth j - 1 was. Seconds are measured: the median of recent rounds of
that depth, per number of rows (in powers of two), with linear interpolation and extrapolation between depths. There is
no model of the hardware. Plain decoding (depth 0) is a candidate like the others, and wins at a large batch.

A batch ends with its last row, so acceptance is measured on the half of the rows that has the fewest units. If the
drafter proposes nothing in a round, that round emits one unit and costs its time: this is part of a depth's cost.

The policy learns while it decodes. A first call warms up with drafts of middle depth and a few plain rounds, and goes
deeper if the estimates promise more. Other depths are probed more rarely while they lose.

With a table of costs (`costs`, of `mmspec.core.step_costs`) plain rounds need no warm-up, and the table caps the
drafts of every load: units(d) / (d + 1) never grows with d, so a depth whose (d + 1) / seconds(d) is not above that of
every shallower one can never be the best, whatever is accepted. It is neither used nor probed.

Decisions depend on settled rounds only, so every rule stays exact; under `match` the output cannot change. The
candidates are few and fixed: nothing recompiles. With `buckets`, they are 0, and the depths that fill passes of these
sizes.
Knobs: `gain` (higher changes depth less often), `probe` (higher probes other depths less often), `memory` (higher is
steadier and follows a text more slowly).
"""

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median, median_low
from typing import Annotated, Any, ClassVar

from pydantic import Field

from mmspec.core.step_costs import StepCosts, on_line
from mmspec.core.types import Draft
from mmspec.registry.options import option

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


WARM_UP_VISITS = 3
"""Rounds of each depth of the warm-up; the first one is not measured, as it may compile."""

SHORTEST_WAIT = 4
"""Rounds until another depth is probed for the first time; later `probe` rounds, and more while it loses."""
LONGEST_WAIT = 4
"""Most rounds between two probes of a depth, in multiples of `probe`."""


@dataclass(frozen=True)
class GoodputOptions:
    """Options of the policy `goodput`."""

    gain: Annotated[float, Field(ge=0, le=1)] = option(
        0.05, "change depth only for this share more units per second; higher changes less"
    )
    probe: Annotated[int, Field(ge=2)] = option(
        16, "rounds between looks at another depth; higher looks less often, and losing makes it rarer"
    )
    memory: Annotated[int, Field(ge=1)] = option(
        32, "rounds that acceptance remembers; higher is steadier and slower to follow"
    )
    buckets: tuple[Annotated[int, Field(ge=1)], ...] = option(
        (), "nodes of passes, root included, that drafts shall fill; empty: powers of two"
    )
    costs: str = option("", "file of measured rounds of this model, which say what drafts cost")


class Goodput:
    """See the module. One object serves all calls of a decoder, and keeps its measurements between them.

    Args:
        k: Most units to draft.
        options: Hysteresis, probing, memory, buckets; a file of costs is read if `costs` is None.
        costs: The table of costs; None: the table that the options name, if any.
    """

    clocked: ClassVar[bool] = True  # budgets depend on measured times

    def __init__(
        self,
        k: int,
        options: GoodputOptions = GoodputOptions(),
        costs: StepCosts | None = None,
    ) -> None:
        self.options = options
        self._k = k
        self._width: Callable[[int], int] = int  # drafted nodes of a depth: as many as a chain has
        self._costs = StepCosts.read(Path(options.costs)) if costs is None and options.costs else costs
        self._tried, self._taken = [0.0], [0.0]  # by depth, discounted counts
        self._loads: dict[int, Load] = {}
        self._keep = 1 - 1 / options.memory
        self._asked = self._silent = 0.0
        self._next: int | None = None

    def know(self, width: Callable[[int], int]) -> None:
        self._width = width

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_loads": {}}  # a copy may be for another machine, and measures its own rounds

    @cached_property
    def depths(self) -> list[int]:
        """The candidates, before a table caps them: 0, `k` and the powers of two below, or depths that fill buckets."""
        if not self.options.buckets:
            return sorted({0, self._k, *(2**i for i in range(self._k.bit_length()) if 2**i < self._k)})
        every = range(self._k + 1)
        filled = (bisect_right(every, size - 1, key=self._width) - 1 for size in self.options.buckets)
        return sorted({0, *(depth for depth in filled if depth > 0)})

    def budget(self) -> int:
        if self._next is None:
            self._next = _middle(self.depths)
        return self._next

    def trim(self, draft: Draft) -> Draft:
        return draft

    def observe(self, depth: int, emitted: Sequence[int], seconds: float) -> None:
        asked_for, rows = self.budget(), len(emitted)
        if rows.bit_length() not in self._loads:
            self._loads[rows.bit_length()] = self._new_load(rows)
        load = self._loads[rows.bit_length()]
        active = [n for n in emitted if n]
        behind = active[: (len(active) + 1) // 2]
        asked = asked_for > 0
        self._count(depth, behind)
        if asked:
            self._asked = self._keep * self._asked + 1
            self._silent = self._keep * self._silent + (depth == 0)
        # The drafter was asked and proposed nothing: such a round is neither plain nor one of the depth asked for.
        if asked and not depth:
            load.silent.append(seconds)
        else:
            load.time(depth, seconds)
        if load.depth is not None and asked_for != load.depth and behind:
            self._set_wait(load, asked_for, won=sum(behind) / len(behind) > seconds * self.goodput(load, load.depth))
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

    def _new_load(self, rows: int) -> Load:
        """A load whose warm-up begins: the middle depth and 0, since deeper drafts are tried only if they promise more.

        The current round is the first visit.
        """
        if self._costs is None:
            return Load(self.depths, [_middle(self.depths)] * (WARM_UP_VISITS - 1) + [0] * WARM_UP_VISITS)

        def table(depth: int, costs: StepCosts = self._costs) -> float:
            return costs(rows, self._width(depth) + 1)

        kept: list[int] = []
        for depth in self.depths:  # 0 is the first
            if all((depth + 1) / table(depth) > (d + 1) / table(d) for d in kept):
                kept.append(depth)
        return Load(kept, [_middle(kept)] * (WARM_UP_VISITS - 1), table)

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
        goodput = {d: self.goodput(load, d) for d in load.depths}
        best = max(goodput, key=goodput.__getitem__)
        if load.depth is None or goodput[best] > (1 + self.options.gain) * goodput[load.depth]:
            load.depth = best
        load.rounds += 1
        return self._depth_or_probe(load, load.depth)

    def _depth_or_probe(self, load: Load, depth: int) -> int:
        """The depth in use; or, if a probe is due, one of its neighbours or 0."""
        at, shortest = load.depths.index(depth), min(SHORTEST_WAIT, self.options.probe)
        others = {*load.depths[max(0, at - 1) : at + 2], 0} - {depth}
        overdue = {d: load.rounds - load.probed[d] - load.wait.get(d, shortest) for d in sorted(others)}
        other = max(overdue, key=overdue.__getitem__, default=depth)
        if other == depth or overdue[other] < 0:
            return depth
        load.probed[other] = load.rounds
        return other

    def _set_wait(self, load: Load, depth: int, won: bool) -> None:
        """Probe a depth again sooner if its probe beat the depth in use, else later."""
        wait, shortest = load.wait.get(depth, 0), min(SHORTEST_WAIT, self.options.probe)
        longer = max(2 * wait, self.options.probe)
        load.wait[depth] = max(shortest, wait // 2) if won else min(longer, LONGEST_WAIT * self.options.probe)


def _middle(depths: list[int]) -> int:
    return depths[len(depths) // 2]
