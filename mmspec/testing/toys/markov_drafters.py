"""Drafters for discrete toys, from an order-2 table of their own: a chain, and trees with siblings of every kind.

They look at the last two known units only, so that they fit every discrete toy. A table unlike the target's makes a
bad drafter.
"""

from typing import Literal

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical
from mmspec.core.drafters.none import Memoryless
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft


def last_two(state: State) -> tuple[Tensor, Tensor]:
    """The unit before the root, and the root: `[batch]` each. Without a unit before the root, the root is both."""
    return state.history.gather(1, (state.known - 2).clamp(min=0)[:, None])[:, 0], state.root


class MarkovChain(Memoryless):
    """A chain that is sampled from logits `[vocab, vocab, vocab]`; from the `top` likeliest units only, if above 0."""

    offers = frozenset({"chain", "q"})
    needs: frozenset[str] = frozenset()

    def __init__(self, table: Tensor, top: int = 0) -> None:
        self.table = table
        self.top = top

    def bind(self, target: Target) -> None:
        assert target.vocab == len(self.table)

    def width(self, k: int) -> int:
        return k

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        before, at = last_two(state)
        units: list[Tensor] = []
        distributions: list[Categorical] = []
        for depth in range(1, k + 1):
            distribution = Categorical.of_logits(self.table[before, at][:, None])
            distributions.append(Categorical.top(distribution, self.top) if self.top else distribution)
            before, at = at, distributions[-1].draw(noise.chain(depth, 1))[:, 0]
            units.append(at)
        distribution = Categorical.cat(distributions)
        return Draft.chain(torch.stack(units, 1), distribution, score=distribution.confidence().cumsum(1))


class MarkovTree(Memoryless):
    """A tree of one shape for all rows, from logits `[vocab, vocab, vocab]`; `branching` counts children by depth.

    Siblings are drawn `with` or `without` replacement, or are the `top`: the likeliest units, which are point masses.
    An exponential race orders `without` siblings as sequential draws would, and with the target's noise they are
    Gumbel-top-k.
    """

    offers = frozenset({"tree", "q"})
    needs: frozenset[str] = frozenset()

    def __init__(
        self,
        table: Tensor,
        branching: tuple[int, ...] = (2, 2, 1),
        siblings: Literal["with", "without", "top"] = "without",
    ) -> None:
        self.table = table
        self.branching = branching
        self.siblings = siblings

    def bind(self, target: Target) -> None:
        assert target.vocab == len(self.table)

    def width(self, k: int) -> int:
        return len(self.parents(k))

    def parents(self, k: int) -> tuple[int, ...]:
        """Parents of the drafted nodes of `k` levels, level by level; -1 is the root."""
        parents: list[int] = []
        level = [-1]
        for children in self.branching[:k]:
            hang = [p for p in level for _ in range(children)]
            level = [len(parents) + i for i in range(len(hang))]
            parents += hang
        return tuple(parents)

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        before, at = (unit[:, None] for unit in last_two(state))
        units, distributions, scores = [], [], []
        score, first = torch.zeros(state.rows, 1), 1
        for depth, children in enumerate(self.branching[:k], 1):
            distribution = Categorical.of_logits(self.table[before, at])
            before = at.repeat_interleave(children, 1)
            at, drawn_from = self._draw(distribution, children, noise, depth, first)
            score = (score + distribution.confidence()).repeat_interleave(children, 1)
            units.append(at)
            distributions.append(drawn_from)
            scores.append(score)
            first += at.shape[1]
        joined = None if self.siblings == "top" else Categorical.cat(distributions)
        return Draft.tree(torch.cat(units, 1), self.parents(k), joined, score=torch.cat(scores, 1))

    def _draw(
        self, distribution: Categorical, children: int, noise: DraftNoise, depth: int, first: int
    ) -> tuple[Tensor, Categorical]:
        """Children of all nodes of a level, `[batch, level * children]`, and what each was drawn from."""
        level = distribution.probs.shape[1]
        if self.siblings == "with":
            each = distribution.take(torch.arange(level).repeat_interleave(children)[None])
            return each.draw(noise.level(depth, first, level * children)), each
        race = distribution.probs if self.siblings == "top" else distribution.race(noise.level(depth, first, level))
        units = race.topk(children, -1).indices  # [batch, level, children]
        return units.flatten(1), Categorical(_without_replacement(distribution.probs, units).flatten(1, 2))


def _without_replacement(probs: Tensor, units: Tensor) -> Tensor:
    """Distribution of each sibling given its earlier ones: `[batch, level, children, vocab]`."""
    left, distributions = probs, []
    for sibling in units.unbind(-1):
        distributions.append(left / left.sum(-1, keepdim=True))
        left = left.scatter(-1, sibling[..., None], 0.0)
    return torch.stack(distributions, -2)
