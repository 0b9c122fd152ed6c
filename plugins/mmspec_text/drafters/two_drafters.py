"""Two drafters in one call: one that stands in for the other (`Fallback`), or one tree of both (`united`).

Both observe every round. A draft of both cannot keep two families of distributions, so its units are point masses.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Drafter, Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step


class TwoDrafters:
    """The common part of combinations. The call's memory is a list that opens with first's and second's."""

    offers = frozenset({"tree"})

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self.first, self.second = first, second
        self.needs = first.needs | second.needs

    def bind(self, target: Target) -> None:
        self.first.bind(target)
        self.second.bind(target)

    def start(self, state: State, inputs: Any) -> list[Any]:
        return [self.first.start(state, inputs), self.second.start(state, inputs)]

    def observe(self, state: State, step: Step) -> None:
        with own_memory(state, 0):
            self.first.observe(state, step)
        with own_memory(state, 1):
            self.second.observe(state, step)


class Fallback(TwoDrafters):
    """Rows without a draft by `first` get `second`'s, round by round.

    For a drafter that proposes rarely, such as a lookup, before one that always proposes. In one round, rows of a batch
    may have a chain from one and a tree from the other: every row then has a tree of its own.
    """

    def __init__(self, first: Drafter, second: Drafter) -> None:
        for drafter in (first, second):
            if "q" in drafter.offers:
                raise ValueError(
                    f"{type(drafter).__name__} draws its drafts from a distribution, which is lost among drafts of "
                    "another drafter; combine drafters of point masses (lookup, recycling, suffix)"
                )
        super().__init__(first, second)

    def width(self, k: int) -> int:
        return max(self.first.width(k), self.second.width(k))

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        with own_memory(state, 0):
            first = self.first.propose(state, k, noise)
        found = _drafted(first)
        free = found.device.type == "cpu"  # elsewhere reading the data is a sync, so both are asked and merged
        if free and bool((found | state.done).all()):
            return first
        with own_memory(state, 1):
            second = self.second.propose(state, k, noise)
        if not second.units.shape[1]:
            return first
        if not first.units.shape[1] or (free and not bool(found.any())):
            return second
        return _merged(found, first, second)


@contextmanager
def own_memory(state: State, which: int) -> Iterator[None]:
    """A block in which `state.memory`, a list that opens with two drafters' memories, is one of them."""
    both: list[Any] = state.memory
    state.memory = both[which]
    try:
        yield
    finally:
        both[which], state.memory = state.memory, both


def _drafted(draft: Draft) -> Tensor:
    """Rows in which the root has a child: `[batch]` bool."""
    return (draft.valid & (draft.index.depth[:, 1:] == 1)).any(1)


def _merged(found: Tensor, first: Draft, second: Draft) -> Draft:
    """Rows of `first` where `found [batch]`, else of `second`; the narrower one is padded."""
    nodes = max(first.units.shape[1], second.units.shape[1])

    def choose(a: Tensor, b: Tensor, padding: int) -> Tensor:
        a, b = (
            torch.cat([x, x.new_full((len(x), nodes - x.shape[1], *x.shape[2:]), padding)], 1).expand(
                len(found), nodes, *x.shape[2:]
            )
            for x in (a, b)
        )
        return torch.where(found.reshape(-1, *(1,) * (a.dim() - 1)), a, b)

    parents = choose(first.index.parent[:, 1:] - 1, second.index.parent[:, 1:] - 1, -1)
    units = choose(first.units, second.units, 0)
    deepest = max(first.index.deepest, second.index.deepest)
    return Draft.tree(units, parents, valid=choose(first.valid, second.valid, False), deepest=deepest)
