"""A drafter whose distributions are degenerate at some nodes: broken (NaN), empty (no mass), or all mass on one unit.

A draft model of a small vocabulary drafts so where all its units are forbidden, or all but one. What a node becomes is
decided by a generator of its own, never by the node's unit, so that exact rules stay exact.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from mmspec.core.laws import Categorical, Gaussian, GaussianMixture, Law, Mixed, PointMass, Trajectory, where_nodes
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Drafter, Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step

Kind = Literal["broken", "empty", "one unit"]
KINDS: tuple[Kind, ...] = ("broken", "empty", "one unit")


class DegenerateDrafts:
    """Passes calls on to a drafter, and spoils some of its nodes.

    Args:
        drafter: Drafts that have no distribution, and units that are point masses, stay as they are.
        kinds: What distributions become. Continuous ones have no ids to put mass on: they are broken, whatever kind.
        share: Of the nodes that are spoiled.
        seed: Of the choice.
    """

    def __init__(self, drafter: Drafter, kinds: Sequence[Kind] = KINDS, share: float = 0.4, seed: int = 0) -> None:
        self.drafter, self.kinds, self.share = drafter, kinds, share
        self.offers, self.needs = drafter.offers, drafter.needs
        self._chance = torch.Generator().manual_seed(seed)

    def bind(self, target: Target) -> None:
        self.drafter.bind(target)

    def width(self, k: int) -> int:
        return self.drafter.width(k)

    def start(self, state: State, inputs: Any) -> Any:
        return self.drafter.start(state, inputs)

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        draft = self.drafter.propose(state, k, noise)
        law, units = draft.law, draft.units
        if law is None or not units.shape[1]:
            return draft
        chance = torch.rand(units.shape[:2], generator=self._chance)
        for index, kind in enumerate(self.kinds):
            where = (chance < self.share) & ((chance * len(self.kinds) / self.share).long() == index)
            law, units = self._spoiled(law, units, where, kind)
        return replace(draft, law=law, units=units)

    def observe(self, state: State, step: Step) -> None:
        self.drafter.observe(state, step)

    def _spoiled(self, law: Law, units: Tensor, where: Tensor, kind: Kind) -> tuple[Law, Tensor]:
        """The law and the units of a draft that is of that kind at the nodes `where [batch, node]`."""
        if isinstance(law, PointMass):
            return law, units
        if isinstance(law, Mixed):
            inner, units = self._spoiled(law.law, units, where & law.random, kind)
            return replace(law, law=inner), units
        if not isinstance(law, Categorical):
            wide = where.reshape(*where.shape, *(1,) * (units.dim() - 2))
            return _broken(law, where), units.masked_fill(wide, torch.nan)
        slot = torch.zeros_like(units)  # what the argmax of a race without a winner is
        if kind == "one unit":
            slot = torch.randint(law.probs.shape[-1], units.shape, generator=self._chance)
        made = {
            "broken": torch.full_like(law.probs, torch.nan),
            "empty": torch.zeros_like(law.probs),
            "one unit": torch.zeros_like(law.probs).scatter(-1, slot[..., None], 1.0),
        }[kind]
        ids = slot if law.ids is None else law.ids.gather(-1, slot[..., None])[..., 0]
        return replace(law, probs=where_nodes(where, made, law.probs)), torch.where(where, ids, units)


def _broken(law: Any, where: Tensor) -> Law:
    """A continuous law that is none at the nodes `where [batch, node]`."""
    field = {Gaussian: "mean", GaussianMixture: "weights", Trajectory: "draws"}[type(law)]
    values = getattr(law, field)
    broken: Law = replace(law, **{field: where_nodes(where, torch.full_like(values, torch.nan), values)})
    return broken
