"""A drafter whose distributions are degenerate at some nodes: broken (NaN), empty (no mass), or all mass on one unit.

A draft model of a small vocabulary drafts so where all of its units are forbidden, or all but one. A generator of its
own decides which nodes are spoiled, independently of their units, so that exact rules stay exact.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from mmspec.core.distributions import (
    Categorical,
    Distribution,
    Gaussian,
    GaussianMixture,
    Mixed,
    PointMass,
    Trajectory,
    where_nodes,
)
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Drafter, Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step

Kind = Literal["broken", "empty", "one unit"]
KINDS: tuple[Kind, ...] = ("broken", "empty", "one unit")


class DegenerateDrafts:
    """Passes calls on to a drafter, and spoils a share of its nodes.

    Drafts without a distribution, and point masses, stay as they are. The distributions of the others become of these
    kinds; continuous ones have no ids to put mass on and become broken.
    """

    def __init__(self, drafter: Drafter, kinds: Sequence[Kind] = KINDS, share: float = 0.4) -> None:
        self.drafter, self.kinds, self.share = drafter, kinds, share
        self.offers, self.needs = drafter.offers, drafter.needs
        self._chance = torch.Generator().manual_seed(0)

    def bind(self, target: Target) -> None:
        self.drafter.bind(target)

    def width(self, k: int) -> int:
        return self.drafter.width(k)

    def start(self, state: State, inputs: Any) -> Any:
        return self.drafter.start(state, inputs)

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        draft = self.drafter.propose(state, k, noise)
        distribution, units = draft.distribution, draft.units
        if distribution is None or not units.shape[1]:
            return draft
        chance = torch.rand(units.shape[:2], generator=self._chance)
        for index, kind in enumerate(self.kinds):
            where = (chance < self.share) & ((chance * len(self.kinds) / self.share).long() == index)
            distribution, units = self._spoiled(distribution, units, where, kind)
        return replace(draft, distribution=distribution, units=units)

    def observe(self, state: State, step: Step) -> None:
        self.drafter.observe(state, step)

    def _spoiled(
        self, distribution: Distribution, units: Tensor, where: Tensor, kind: Kind
    ) -> tuple[Distribution, Tensor]:
        """A draft's distribution and units, spoiled in that way at the nodes `where [batch, node]`."""
        if isinstance(distribution, PointMass):
            return distribution, units
        if isinstance(distribution, Mixed):
            inner, units = self._spoiled(distribution.distribution, units, where & distribution.random, kind)
            return replace(distribution, distribution=inner), units
        if not isinstance(distribution, Categorical):
            wide = where.reshape(*where.shape, *(1,) * (units.dim() - 2))
            return _broken(distribution, where), units.masked_fill(wide, torch.nan)
        slot = torch.zeros_like(units)  # the argmax of a race without a winner
        if kind == "one unit":
            slot = torch.randint(distribution.probs.shape[-1], units.shape, generator=self._chance)
        probs = {
            "broken": torch.full_like(distribution.probs, torch.nan),
            "empty": torch.zeros_like(distribution.probs),
            "one unit": torch.zeros_like(distribution.probs).scatter(-1, slot[..., None], 1.0),
        }[kind]
        ids = slot if distribution.ids is None else distribution.ids.gather(-1, slot[..., None])[..., 0]
        return replace(distribution, probs=where_nodes(where, probs, distribution.probs)), torch.where(
            where, ids, units
        )


def _broken(distribution: Any, where: Tensor) -> Distribution:
    """A continuous distribution with NaN in it at the nodes `where [batch, node]`."""
    field = {Gaussian: "mean", GaussianMixture: "weights", Trajectory: "draws"}[type(distribution)]
    values = getattr(distribution, field)
    return replace(distribution, **{field: where_nodes(where, torch.full_like(values, torch.nan), values)})
