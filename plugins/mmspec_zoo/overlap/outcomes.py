"""Outcomes of a round that is not settled: how much of its draft is accepted, and which unit comes then.

The drafter ranks the units that may come at every node of the pending draft, and a fan chooses the outcomes that it
prepares for, beside the first one: all is accepted and its own next unit comes.
"""

from dataclasses import dataclass
from math import log
from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.distributions import take_nodes


@dataclass(frozen=True)
class Ranked:
    """The outcomes at each node of a pending draft, the root first."""

    units: Tensor  # `[batch, node, child]` int64, the likeliest first; node i is followed by `drafted[:, i]`
    score: Tensor  # `[batch, node, child]`: log of the probability that the target goes on so
    drafted: Tensor  # `[batch, node - 1]` int64: the pending draft
    pending: Tensor  # `[batch]` int64: how many of its units there are

    @property
    def is_drafted(self) -> Tensor:
        """Children that are the draft's own next unit, so that the round goes on: `[batch, node, child]`."""
        following = torch.nn.functional.pad(self.drafted, (0, 1))
        return (self.units == following[..., None]) & self._before[..., None]

    @property
    def at_end(self) -> Tensor:
        """Nodes behind which nothing is drafted: `[batch, node]`."""
        return self._node == self.pending[:, None]

    @property
    def _before(self) -> Tensor:
        return self._node < self.pending[:, None]

    @property
    def _node(self) -> Tensor:
        return torch.arange(self.units.shape[1], device=self.units.device)


class Fan(Protocol):
    """Chooses outcomes; it can be pickled."""

    def value(self, ranked: Ranked) -> Tensor:
        """The worth of preparing for each outcome: `[batch, node, child]`; the largest are prepared for."""


@dataclass(frozen=True)
class Margin:
    """Prepare for the likeliest outcomes, by the drafter's own scores: where its margin over the next unit is small."""

    def value(self, ranked: Ranked) -> Tensor:
        own = torch.where(ranked.is_drafted, ranked.score, -torch.inf).amax(-1)  # of the draft's own next unit
        path = torch.nn.functional.pad(own.cumsum(1)[:, :-1], (1, 0))
        return path[..., None] + ranked.score


@dataclass(frozen=True)
class Geometric:
    """Prepare for a fixed number of outcomes after every accepted length: Saguaro (Kumar et al., arXiv 2603.03251).

    The fan-outs F_j after j accepted units maximise the rate of hits, sum over j of P(j) (1 - (F_j + 1)^-r), if a unit
    is accepted with probability `a` wherever it stands, P(j) = a^j (1 - a), and P(d) = a^d for a draft of d units, and
    if the target's unit is not among the F likeliest with probability (F + 1)^-r. F_j + 1 is then about proportional to
    P(j)^(1 / (1 + r)): it falls geometrically, and is larger again behind the last unit. The best whole numbers are
    taken.
    """

    acceptance: float = 0.8  # `a`, between 0 and 1: higher moves outcomes to later units
    power: float = 1.0  # `r`, positive: higher evens the fan out

    def __post_init__(self) -> None:
        if not 0 < self.acceptance < 1 or not self.power > 0:
            raise ValueError(f"acceptance lies between 0 and 1 and power is positive, got {self}")

    def value(self, ranked: Ranked) -> Tensor:
        others = ~ranked.is_drafted
        rank = others.cumsum(-1).clamp(min=1).double()  # 1 is the likeliest that is not the draft's own
        accepted = torch.arange(rank.shape[1], device=rank.device) * log(self.acceptance)
        chance = accepted + torch.where(ranked.at_end, 0.0, log(1 - self.acceptance))  # log P(j)
        # What the last of F outcomes adds to the rate: it falls with F, so that the largest are the best fan.
        return chance[..., None] + (rank**-self.power - (rank + 1) ** -self.power).log()


@dataclass(frozen=True)
class Even:
    """Prepare for equally many outcomes after every accepted length: the top κ of Mirror-SD (arXiv 2510.13161)."""

    def value(self, ranked: Ranked) -> Tensor:
        return -(~ranked.is_drafted).cumsum(-1).double()


@dataclass(frozen=True)
class Outcomes:
    """The outcomes that are prepared for; the first is that all is accepted."""

    accepted: Tensor  # `[batch, branch]` int64: units of the pending draft that are accepted
    unit: Tensor  # `[batch, branch]` int64: the unit that comes then
    valid: Tensor  # `[batch, branch]` bool

    @classmethod
    def chosen(cls, ranked: Ranked, branches: int, fan: Fan) -> "Outcomes":
        """The first outcome, and the `branches - 1` that are worth most."""
        pending, children = ranked.pending[:, None], ranked.units.shape[2]
        own = take_nodes(ranked.units, pending)[..., 0]
        if branches == 1:
            return cls(pending, own, torch.ones_like(own, dtype=torch.bool))
        reached = torch.arange(ranked.units.shape[1], device=own.device) <= pending
        first = ranked.at_end[..., None] & (torch.arange(children, device=own.device) == 0)
        possible = reached[..., None] & ~first & ~ranked.is_drafted & (ranked.score > -torch.inf)
        value = torch.where(possible, fan.value(ranked), -torch.inf).flatten(1)
        best = value.topk(min(branches - 1, value.shape[1]), 1)
        return cls(
            torch.cat([pending, best.indices // children], 1),
            torch.cat([own, ranked.units.flatten(1).gather(1, best.indices)], 1),
            torch.cat([torch.ones_like(own, dtype=torch.bool), best.values > -torch.inf], 1),
        )
