"""A drafter whose drafts cost next to nothing, for measuring the loop instead of a drafter."""

from typing import Any

import torch

from mmspec.core.drafters.static_tree import levels_of, likeliest_tree
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step

RATES = (0.6, 0.2, 0.1, 0.05)
"""Chance of a child by its rank, for the form of static trees."""


class StaticTree:
    """A `Drafter` whose drafts have always one tree and cost next to nothing: they are made on the device.

    Args:
        nodes: Drafted nodes.
        depth: Most units per path; a chain if this is `nodes`.
    """

    needs = frozenset({"discrete"})

    def __init__(self, nodes: int, depth: int) -> None:
        self.parents = likeliest_tree(RATES, min(depth, nodes), nodes)[0] if depth < nodes else range(-1, nodes - 1)
        self.offers = frozenset({"tree" if depth < nodes else "chain"})
        self.depth = len(levels_of(self.parents))
        self._vocab = 0

    def bind(self, target: Target) -> None:
        assert target.vocab is not None
        self._vocab = target.vocab

    def width(self, k: int) -> int:
        return len(self.parents)

    def start(self, state: State, inputs: Any) -> None:
        return None

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        """The units that follow the root's id; siblings have distinct ones."""
        after = torch.arange(1, len(self.parents) + 1, device=state.root.device)
        return Draft.tree((state.root[:, None] + after) % self._vocab, self.parents)

    def observe(self, state: State, step: Step) -> None:
        pass
