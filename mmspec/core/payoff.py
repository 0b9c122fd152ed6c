"""`payoff`: of every draft the part that is expected to pay, by what its drafter says about this very draft.

A drafter's `score` is the log probability of reaching a node. A chain that is cut at depth d is expected to emit
1 + r (s_1 + … + s_d) units, where s_j is the probability of reaching depth j, and r corrects the drafter: units that
were accepted over units that were expected, in recent rounds. The policy cuts a chain at the depth with the most
expected units per second, and drops it unless that beats a plain round. So what the drafter knows is drafted deeply,
and elsewhere rounds are plain. SuffixDecoding (arXiv 2411.04975) ends its drafts by such probabilities; SmartSpec
(arXiv 2406.14066) weighs units against seconds. `goodput` weighs averages over many rounds instead.

The seconds of a depth are the lower median of its recent rounds. Other depths lie on lines through the measured ones,
at first with a share of a plain round for each node (`NODE`). So nothing is warmed up but for two plain rounds, and
nothing is probed: a depth is tried where a draft is sure enough. A depth that was not timed for long is forgotten, as a
disturbance may have spoilt its seconds.

The policy always asks for the longest draft, which suits drafters that run no model. Trees are left whole. Off the CPU
reading the scores waits for the device. A batch ends with its last row, so r counts the rows with the fewest units.
Knobs: a higher `gain` drafts less; a higher `memory` is steadier and follows a text more slowly.
"""

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import median_low
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field

from mmspec.core.step_costs import on_line
from mmspec.core.types import Draft
from mmspec.registry.options import option

NODE = 0.12
"""Share of a plain round that a drafted node is supposed to cost before it was measured."""
RECENT = 9
"""Rounds of a depth over which its median is taken."""
FORGOTTEN = 100
"""Rounds after which a measured depth is taken as unknown again."""
PRIOR = 2.0
"""Accepted and expected units before the first round: how slowly the first rounds correct the drafter."""


@dataclass(frozen=True)
class PayoffOptions:
    """Options of the policy `payoff`."""

    gain: Annotated[float, Field(ge=0, le=1)] = option(
        0.05, "draft only for this share more units per second than plain rounds have"
    )
    memory: Annotated[int, Field(ge=1)] = option(
        32, "rounds that acceptance remembers; higher is steadier and slower to follow"
    )


class RoundCosts:
    """Seconds of rounds by depth, for about the same number of rows."""

    def __init__(self) -> None:
        self._seconds = defaultdict[int, deque[float]](lambda: deque(maxlen=RECENT))
        self._latest: dict[int, int] = {}  # the round in which each depth was last timed
        self._rounds = 0

    def time(self, depth: int, seconds: float) -> None:
        """Note a round's wall time."""
        self._rounds += 1
        for old in [d for d, latest in self._latest.items() if d and self._rounds - latest > FORGOTTEN]:
            self._seconds.pop(old, None), self._latest.pop(old)
        if depth in self._latest:  # the first round of a depth may have compiled
            self._seconds[depth].append(seconds)
        self._latest[depth] = self._rounds

    def to(self, deepest: int) -> list[float]:
        """Seconds of depths 0 … `deepest`; infinite as long as plain rounds were not timed, with which they compare."""
        # Disturbances only add time, hence the lower median.
        known = {depth: median_low(times) for depth, times in sorted(self._seconds.items())}
        return [_cost(known, depth) if 0 in known else math.inf for depth in range(deepest + 1)]


def _cost(known: dict[int, float], depth: int) -> float:
    """The seconds of a depth; `known` has measured ones in ascending order, the first of plain rounds."""
    last = max(known)
    if depth <= last:
        return on_line(list(known.items()), depth)
    # As steep as all from 0 to here, since the last two may be noise
    return known[last] + (depth - last) * (max(0.0, known[last] - known[0]) / last if last else NODE * known[0])


class Payoff:
    """See the module. One object serves all calls of a decoder, and keeps its measurements between them.

    Args:
        k: Most units to draft.
        options: What it takes to draft, and the memory of acceptance.
    """

    clocked: ClassVar[bool] = True  # what is cut depends on measured times
    trims: ClassVar[bool] = True

    def __init__(self, k: int, options: PayoffOptions = PayoffOptions()) -> None:
        self.options = options
        self._k = k
        self._keep = 1 - 1 / options.memory
        self._accepted = self._expected = 0.0  # discounted sums
        self._costs = defaultdict[int, RoundCosts](RoundCosts)  # by powers of two of the number of rows
        self._foreseen = [0.0]  # units of a row that the round's draft is expected to bring, by depth

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_costs": defaultdict(RoundCosts)}  # a copy measures its own rounds

    def budget(self) -> int:
        return self._k

    def trim(self, draft: Draft) -> Draft:
        """The chain up to the depth that pays best; a unit without a score is supposed to be right in half of cases."""
        if not draft.index.is_chain:
            return draft
        rows, k = draft.valid.shape
        depths = torch.arange(1, k + 1, device=draft.valid.device)
        reached = draft.valid * (0.5**depths if draft.score is None else draft.score.exp())
        units = [0.0, *accumulate((reached.sum(0) / rows).tolist())]
        right = (self._accepted + PRIOR) / (self._expected + PRIOR)
        costs = self._costs[rows.bit_length()].to(k)
        payoff = [(1 + right * more) / cost for more, cost in zip(units, costs, strict=True)]
        payoff[0] *= 1 + self.options.gain
        best = max(range(k + 1), key=payoff.__getitem__)
        self._foreseen = units[: best + 1]
        return replace(draft, valid=draft.valid & (depths <= best))

    def observe(self, depth: int, emitted: Sequence[int], seconds: float) -> None:
        depth = min(depth, len(self._foreseen) - 1)  # off the CPU what was cut is verified, too
        self._costs[len(emitted).bit_length()].time(depth, seconds)
        active = [n for n in emitted if n]
        behind = active[: (len(active) + 1) // 2]
        self._accepted *= self._keep  # plain rounds count, too: a drafter that was wrong is tried again
        self._expected *= self._keep
        if depth and behind:
            self._accepted += sum(n - 1 for n in behind) / len(behind)
            self._expected += self._foreseen[depth]
        self._foreseen = [0.0]
