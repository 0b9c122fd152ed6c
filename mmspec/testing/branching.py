"""A drafter of sampled siblings for the toy target with a history: with or without replacement, any tree."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.core.laws import Categorical
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec.testing.history import HistoryTarget


class Branching:
    """Draws every node from the model's law at its parent, in the tree's order.

    Args:
        model: What it draws from; it sees the known units only, and keeps no memory.
        parents: The tree, as in `Draft.tree`.
        replace: Siblings may be equal, or each is drawn from what its earlier siblings left.
    """

    offers = frozenset({"tree", "q"})
    needs: frozenset[str] = frozenset()

    def __init__(self, model: HistoryTarget, parents: Sequence[int], replace: bool = False) -> None:
        self.model, self.parents, self.replace = model, list(parents), replace

    def bind(self, target: Target) -> None:
        pass

    def width(self, k: int) -> int:
        return len(self.parents)

    def start(self, state: State, inputs: Any) -> None:
        pass

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        units: list[Tensor] = []
        laws: list[Categorical] = []
        depth = [0]
        for node, parent in enumerate(self.parents, start=1):
            law = self._law(state, units, parent)
            depth.append(depth[parent + 1] + 1)
            laws.append(law)
            units.append(law.draw(noise.level(depth[node], node, 1))[:, 0])
        return Draft.tree(torch.stack(units, 1), self.parents, Categorical.cat(laws))

    def observe(self, state: State, step: Step) -> None:
        pass

    def _law(self, state: State, units: list[Tensor], parent: int) -> Categorical:
        drafted = torch.stack(units, 1) if units else state.root[:, None][:, :0]
        so_far = Draft.tree(drafted, self.parents[: len(units)]).rooted(state.root, state.emitted + len(units))
        logits = self.model.after(state.history, state.known - 1, so_far)[:, parent + 1]
        if not self.replace:
            for sibling, other in enumerate(self.parents[: len(units)]):
                if other == parent:
                    logits = logits.scatter(1, units[sibling][:, None], -torch.inf)
        return Categorical.of_logits(logits[:, None])
