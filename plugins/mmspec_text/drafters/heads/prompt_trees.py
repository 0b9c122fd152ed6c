"""The dynamic sparse tree of PPD: the candidates of a pass, and the number of prompt tokens behind each.

Chen et al., arXiv 2405.18628: where k prompt tokens hang behind the last accepted node, the next draft has k levels: it
is in state k. The candidates of a state are the likeliest tree of so many nodes and levels. Each of them gets all
prompt tokens; then, as long as there are too many, the one goes that is missed least. The last of i prompt tokens
behind c is missed by p(c) (f(i) - f(i - 1)): p(c) is the chance that c is the last accepted node, f(i) the number of
candidates that state i is expected to accept. One always stays, and the root keeps all.
A budget is of candidates and prompt tokens together. It is divided so that most is accepted per round in the long run,
where states follow one another as the trees say.
Differences from the published code: all states have one number of candidates where they can, since rows of a batch in
different states share a pass; and a round in which nothing is accepted is followed by one with all prompt tokens, where
the published estimate (not its decoding) puts a round without a draft between.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mmspec.core.distributions import Categorical
from mmspec.core.drafters.shapes.shape import Frontier, Level
from mmspec.core.drafters.shapes.siblings import race
from mmspec.core.drafters.static_tree import levels_of, likeliest_tree_by_depth, reached
from mmspec.core.once import known
from mmspec.core.step_costs import StepCosts
from mmspec.core.transfer import moved

Rates = tuple[tuple[float, ...], ...]
"""The chance of the unit of every rank, by depth, to be the target's where its parent is accepted."""


@dataclass(frozen=True)
class StateTree:
    """The tree of one state."""

    parents: tuple[int, ...]  # of its candidates, -1 for the root; levels follow one another
    ranks: tuple[int, ...]
    chances: tuple[float, ...]  # of every candidate to be accepted
    prompts: tuple[int, ...]  # prompt tokens behind the root, and behind every candidate


@dataclass(frozen=True)
class PromptTrees:
    """The trees of all states."""

    states: tuple[StateTree, ...]  # of 1, 2, … prompt tokens
    accepted: float = field(compare=False)  # candidates that a round is expected to accept in the long run

    @property
    def counts(self) -> tuple[tuple[int, ...], ...]:
        """Prompt tokens behind the nodes of a draft, the root first, by the number of its levels, from 0 on."""
        return ((len(self.states),), *(tree.prompts for tree in self.states))


def best_trees(rates: Rates, prompts: int, budget: int, costs: StepCosts | None = None) -> PromptTrees:
    """The trees that accept most; or, by a table of costs, those that emit most units per second of a row alone.

    `rates` of deeper levels are those of the last one; `budget` counts candidates and prompt tokens behind them, at
    least 2, less of which may pay by `costs`, the seconds of passes.
    """
    budgets = [budget] if costs is None else [*range(max(4, budget // 16), budget, max(4, budget // 16)), budget]
    sizes = ((each, size) for each in budgets for size in range(max(1, each // (prompts + 1)), each // 2 + 1))
    found = (divided(rates, [size] * prompts, each) for each, size in sizes)
    return max(found, key=lambda trees: (1 + trees.accepted) / (1 if costs is None else costs(1, most_nodes(trees))))


def most_nodes(trees: PromptTrees) -> int:
    """Nodes of a pass: the root, the candidates, and the prompt tokens behind them."""
    return 1 + max(len(tree.ranks) for tree in trees.states) + max(map(sum, trees.counts))


def divided(rates: Rates, sizes: Sequence[int], budget: int) -> PromptTrees:
    """The trees of states 1, 2, … of at most so many candidates; arguments as in `best_trees`."""
    rates = (*rates, *rates[-1:] * len(sizes))[: len(sizes)]
    shapes = [likeliest_tree_by_depth(rates[: state + 1], size) for state, size in enumerate(sizes)]
    chances = [reached(*shape, rates) for shape in shapes]
    worth = [sum(each) for each in chances]
    gains = [after - before for before, after in pairwise([0.0, *worth])]
    states, moves = [], torch.zeros(len(sizes), len(sizes), dtype=torch.float64, device="cpu")
    for state, ((parents, ranks), chance) in enumerate(zip(shapes, chances, strict=True)):
        last = [1.0, *chance]  # that a node is accepted, and none of its children
        for node, parent in enumerate(parents):
            last[1 + parent] -= chance[node]
        counts = (len(sizes), *_kept(last[1:], gains, budget - len(ranks)))
        states.append(StateTree(parents, ranks, tuple(chance), counts))
        for count, ends in zip(counts, last, strict=True):
            moves[state, count - 1] += ends
    later = torch.linalg.matrix_power(moves, 64)[-1]  # the states behind many rounds, of which the first has all
    return PromptTrees(tuple(states), float(later @ torch.tensor(worth, dtype=torch.float64, device="cpu")))


def _kept(last: Sequence[float], gains: Sequence[float], most: int) -> list[int]:
    """Prompt tokens behind every candidate, at most so many in all, or one each."""
    counts = [len(gains)] * len(last)
    missed = [(chance * gains[-1], node) for node, chance in enumerate(last)]
    heapq.heapify(missed)
    for _ in range(min(sum(counts) - most, sum(counts) - len(counts))):
        _, node = heapq.heappop(missed)
        counts[node] -= 1
        if counts[node] > 1:
            heapq.heappush(missed, (last[node] * gains[counts[node] - 1], node))
    return counts


@dataclass(frozen=True, eq=False)
class ByState:
    """Every row has the tree of its own state; its units are the likeliest, or win the race with the target's noise."""

    trees: PromptTrees
    state: Tensor | None = None  # `[batch]`, at most the levels of the round; 0: no draft

    offers = frozenset({"tree"})
    needs = frozenset({"rerank"})  # units are point masses

    @property
    def widest(self) -> int:
        return 1 + max(max(tree.ranks) for tree in self.trees.states)

    def levels(self, k: int) -> int:
        return min(k, len(levels_of(self.trees.states[-1].parents)))

    def width(self, k: int) -> int:
        return max((len(tree.ranks) for tree in self.trees.states[:k]), default=0)

    def fed(self, k: int) -> int:
        return self.width(k)

    def parents(self, k: int) -> tuple[int, ...] | None:
        return None

    def level(self, frontier: Frontier, depth: int) -> Level:
        assert isinstance(frontier.distribution, Categorical) and self.state is not None
        tables = _level(self.trees, depth, self.state.device)
        parent, rank, kept, score = (table[self.state] for table in tables)
        best = race(frontier).topk(self.widest, -1)  # [batch, m, rank]
        place = parent * self.widest + rank
        units, values = (found.flatten(1).gather(1, place) for found in (best.indices, best.values))
        return Level(units, parent, score, (score > -torch.inf) & (values > 0), frontier=kept)

    def choose(self, score: Tensor) -> Tensor | None:
        assert self.state is not None
        return _chosen(self.trees, score.shape[1], score.device)[self.state]


@known
def _level(trees: PromptTrees, depth: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A level of the trees of states 0, 1, …, padded to the largest one, `[state, node]` each.

    That is parents, as places among the kept nodes of the level above; ranks; the places of nodes that are kept, since
    they have children; and the logarithm of the chance to be accepted, -inf at padding.
    """
    rows: list[Any] = [([], [], [], [])]
    for tree in trees.states:
        levels = [[-1], *levels_of(tree.parents)]
        above, nodes = levels[depth - 1 : depth + 1] if depth < len(levels) else ([], [])
        above = [node for node in above if node in tree.parents]
        parents, ranks = [above.index(tree.parents[node]) for node in nodes], [tree.ranks[node] for node in nodes]
        kept = [place for place, node in enumerate(nodes) if node in tree.parents]
        rows.append((parents, ranks, kept, [math.log(max(tree.chances[node], 1e-30)) for node in nodes]))
    *ids, scores = zip(*rows, strict=True)
    made = [_padded(each, device) for each in ids]
    return made[0], made[1], made[2], _padded(scores, device, -torch.inf)


@known
def _chosen(trees: PromptTrees, drafted: int, device: torch.device) -> Tensor:
    """The nodes of every state's tree among `drafted` ones of all levels, ascending; later ones fill up."""
    sizes: list[int] = []  # of the levels
    while sum(sizes) < drafted:
        sizes.append(_level(trees, len(sizes) + 1, torch.device("cpu"))[0].shape[1])
    states = trees.states[: len(sizes)]
    most, rows = max(len(tree.ranks) for tree in states), [list(range(drafted))]
    for levels in (levels_of(tree.parents) for tree in states):
        own = [sum(sizes[:depth]) + place for depth, level in enumerate(levels) for place in range(len(level))]
        rows.append([*own, *range(own[-1] + 1, drafted)])
    return _padded([row[:most] for row in rows], device)


def _padded(rows: Sequence[Sequence[float]], device: torch.device, value: float = 0) -> Tensor:
    dtype = torch.int64 if value == 0 else torch.float32
    return moved(pad_sequence([torch.tensor(row, dtype=dtype, device="cpu") for row in rows], True, value), device)
