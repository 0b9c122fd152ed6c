"""Which candidates a pass of PPD verifies, and how many prompt tokens hang behind each: the dynamic sparse tree.

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

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical
from mmspec.core.drafters.shapes.shape import Frontier, Level
from mmspec.core.drafters.shapes.siblings import race
from mmspec.core.drafters.static_tree import levels_of, likeliest_tree_by_depth, reached
from mmspec.core.once import known
from mmspec.core.step_costs import StepCosts
from mmspec.core.transfer import on_device

Rates = tuple[tuple[float, ...], ...]
"""The chance of the unit of every rank, by depth, to be the target's where its parent is accepted."""
TINY = 1e-30
"""Stands for a chance of 0, whose logarithm is that of no node."""
STEP = 4
"""Budgets that are compared by their costs are multiples of this."""


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


def best_trees(rates: Rates, prompts: int, budget: int) -> PromptTrees:
    """The best division of a budget of at least 2.

    Args:
        rates: As they are; deeper levels have those of the last one.
        prompts: The number of prompt tokens that were trained.
        budget: Candidates and prompt tokens behind them.
    """
    sizes = range(max(1, budget // (prompts + 1)), budget // 2 + 1)
    return max((divided(rates, [size] * prompts, budget) for size in sizes), key=lambda trees: trees.accepted)


def paying_trees(rates: Rates, prompts: int, budget: int, costs: StepCosts) -> PromptTrees:
    """The trees of a budget, at most the given one, that emit most units per second of a row alone, by a table."""
    found = [best_trees(rates, prompts, size) for size in {*range(STEP, budget, STEP), budget}]
    return max(found, key=lambda trees: (1 + trees.accepted) / costs(1, most_nodes(trees)))


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
    missed = [(chance * gains[-1], node) for node, chance in enumerate(last)] if len(gains) > 1 else []
    heapq.heapify(missed)
    for _ in range(sum(counts) - most):
        if not missed:
            break
        _, node = heapq.heappop(missed)
        counts[node] -= 1
        if counts[node] > 1:
            heapq.heappush(missed, (last[node] * gains[counts[node] - 1], node))
    return counts


@dataclass(frozen=True, eq=False)
class ByState:
    """The shape of drafts of which every row has the tree of its own state: the likeliest units, as point masses.

    Under `match` the likeliest units are those that win the race with the target's own noise.
    """

    trees: PromptTrees
    state: Tensor | None = None  # `[batch]`, at most the levels of the round; 0: no draft

    offers = frozenset({"tree"})
    needs = frozenset({"rerank"})  # the likeliest units have not the distribution that they come from

    @property
    def widest(self) -> int:
        return 1 + max(max(tree.ranks) for tree in self.trees.states)

    def levels(self, k: int) -> int:
        return min(k, len(levels_of(self.trees.states[-1].parents)))

    def width(self, k: int) -> int:
        return max((len(tree.ranks) for tree in self.trees.states[:k]), default=0)

    def fed(self, k: int) -> int:
        return sum(_level(self.trees, depth, torch.device("cpu")).kept.shape[1] for depth in range(1, self.levels(k)))

    def parents(self, k: int) -> tuple[int, ...] | None:
        return None

    def level(self, frontier: Frontier, depth: int) -> Level:
        assert isinstance(frontier.distribution, Categorical) and self.state is not None
        table = _level(self.trees, depth, self.state.device)
        parent, score = table.parent[self.state], table.score[self.state]
        best = race(frontier).topk(self.widest, -1)  # [batch, m, rank]
        place = parent * self.widest + table.rank[self.state]
        units, values = (found.flatten(1).gather(1, place) for found in (best.indices, best.values))
        valid = (score > -torch.inf) & (values > 0)
        return Level(units, parent, score, valid, frontier=table.kept[self.state])

    def choose(self, score: Tensor) -> Tensor | None:
        assert self.state is not None
        return _chosen(self.trees, score.shape[1], score.device)[self.state]


@dataclass(frozen=True, eq=False)
class LevelTable:
    """One level of the trees of states 0, 1, …, padded to the largest: `[state, node]` each."""

    parent: Tensor  # the parent's place among the kept nodes of the level above
    rank: Tensor
    score: Tensor  # log of the chance to be reached; -inf at padding
    kept: Tensor  # the nodes that have children, padded with 0


@known
def _level(trees: PromptTrees, depth: int, device: torch.device) -> LevelTable:
    parents, ranks, scores, kept = [], [], [], []
    for tree in (None, *trees.states):
        levels = [[-1], *(() if tree is None else levels_of(tree.parents))]
        nodes = levels[depth] if depth < len(levels) else []
        given = () if tree is None else tree.parents
        above = [node for node in levels[depth - 1] if node in given] if nodes else []
        parents.append([above.index(given[node]) for node in nodes])
        ranks.append([] if tree is None else [tree.ranks[node] for node in nodes])
        scores.append([] if tree is None else [math.log(tree.chances[node] or TINY) for node in nodes])
        kept.append([place for place, node in enumerate(nodes) if node in given])
    made = [on_device(_padded(rows, 0), device) for rows in (parents, ranks, kept)]
    return LevelTable(made[0], made[1], on_device(_padded(scores, -torch.inf), device), made[2])


@known
def _chosen(trees: PromptTrees, drafted: int, device: torch.device) -> Tensor:
    """The nodes of every state's tree among `drafted` ones of all levels, ascending; later ones fill up."""
    sizes: list[int] = []  # of the levels
    while sum(sizes) < drafted:
        sizes.append(_level(trees, len(sizes) + 1, torch.device("cpu")).parent.shape[1])
    most = max(len(tree.ranks) for tree in trees.states[: len(sizes)])
    rows = []
    for tree in (None, *trees.states[: len(sizes)]):
        levels = [] if tree is None else levels_of(tree.parents)
        own = [sum(sizes[:depth]) + place for depth, level in enumerate(levels) for place in range(len(level))]
        rest = range(own[-1] + 1 if own else 0, drafted)
        rows.append([*own, *rest][:most])
    return on_device(rows, device)


def _padded(rows: Sequence[Sequence[float]], value: float) -> list[list[float]]:
    most = max(map(len, rows))
    return [[*row, *[value] * (most - len(row))] for row in rows]
