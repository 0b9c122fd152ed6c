"""The best static tree for a budget of nodes, if acceptance depends on a child's rank only.

Sequoia's positional acceptance (arXiv 2402.12374, § 4.1): the r-th child of any node is the accepted one with
probability `rates[r]`. A node is then reached with the product of the rates on its path, and a tree's expected accepted
length is the sum of these products. A child's product never exceeds its parent's, so taking the largest product again
and again is optimal (where rates fall from rank to rank, the paper's dynamic programme finds the same trees).
"""

import heapq
from collections.abc import Sequence
from functools import lru_cache


def likeliest_tree(rates: tuple[float, ...], depth: int, nodes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tree of at most `nodes` nodes and `depth` levels, root not counted, with the largest expected length.

    A rank has a probability of `rates`, in any order. There are fewer nodes where `depth` levels hold no more.

    Returns:
        Parents (-1: child of the root), as `Draft.tree` takes them, and ranks. Levels follow one another; within a
        level, children follow their parents' order, then rank.
    """
    return likeliest_tree_by_depth((rates,) * depth, nodes)


@lru_cache(maxsize=256)
def likeliest_tree_by_depth(
    rates: tuple[tuple[float, ...], ...], nodes: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """As `likeliest_tree`, where every level has `rates` of its own; so many levels there are at most."""
    if wrong := [rate for level in rates for rate in level if not 0 <= rate <= 1]:
        raise ValueError(f"rates are probabilities, got {wrong}")
    taken: list[tuple[int, ...]] = []  # a node is its path of ranks
    candidates: list[tuple[float, int, tuple[int, ...]]] = []

    def add_children(probability: float, path: tuple[int, ...]) -> None:
        if len(path) < len(rates):
            for rank, rate in enumerate(rates[len(path)]):
                heapq.heappush(candidates, (-probability * rate, len(path), (*path, rank)))

    add_children(1.0, ())
    while candidates and len(taken) < nodes:
        negative, _, path = heapq.heappop(candidates)
        taken.append(path)
        add_children(-negative, path)
    taken.sort(key=lambda path: (len(path), path))
    place = {path: i for i, path in enumerate(taken)} | {(): -1}
    return tuple(place[path[:-1]] for path in taken), tuple(path[-1] for path in taken)


def expected_units(parents: Sequence[int], ranks: Sequence[int], rates: Sequence[float]) -> float:
    """The units that a round over a tree is expected to emit: 1, and the sum over its nodes of their path products.

    Nodes have the parents (-1: the root) and the ranks among their siblings, and a rank the chance `rates[rank]`.
    """
    return 1.0 + sum(reached(parents, ranks, [rates] * len(parents)))


def reached(parents: Sequence[int], ranks: Sequence[int], rates: Sequence[Sequence[float]]) -> list[float]:
    """The chance of every node of such a tree to be accepted, where a level has `rates` of its own."""
    chances, depths = {-1: 1.0}, {-1: 0}
    for node, (parent, rank) in enumerate(zip(parents, ranks, strict=True)):
        chances[node], depths[node] = chances[parent] * rates[depths[parent]][rank], depths[parent] + 1
    return list(chances.values())[1:]


@lru_cache(maxsize=64)
def counted_tree(children: tuple[int, ...], depth: int, width: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A tree by how many children the root has, then every node in their order, level by level; none behind the last
    one that is listed. Parents and ranks, from 0 on, of the nodes that are at most so deep, of ranks below `width`.
    """
    depths, new = [0], {0: -1}  # of all nodes, the root first; and the numbers of those that are taken
    parents, ranks = list[int](), list[int]()
    for above, count in enumerate(children):
        for rank in range(count):
            depths.append(depths[above] + 1)
            if above in new and depths[-1] <= depth and rank < width:
                new[len(depths) - 1] = len(parents)
                parents.append(new[above])
                ranks.append(rank)
    return tuple(parents), tuple(ranks)


def levels_of(parents: Sequence[int]) -> list[list[int]]:
    """The drafted nodes of every level of a tree, from depth 1 on; a node's parent is -1 below the root."""
    depths = {-1: 0}
    levels: list[list[int]] = []
    for node, parent in enumerate(parents):
        depths[node] = depths[parent] + 1
        if depths[node] > len(levels):
            levels.append([])
        levels[depths[node] - 1].append(node)
    return levels
