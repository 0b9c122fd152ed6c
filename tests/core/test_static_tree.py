"""The best static tree against all trees."""

import random
from collections.abc import Iterator
from math import prod

import pytest

from mmspec.core.drafters.static_tree import likeliest_tree

Path = tuple[int, ...]


def all_trees(ranks: int, depth: int, nodes: int) -> Iterator[frozenset[Path]]:
    """Every set of paths that contains all prefixes of its paths."""
    layer = {frozenset[Path]()}
    for _ in range(nodes):
        grown = set()
        for tree in layer:
            for above in [(), *tree]:
                if len(above) < depth:
                    grown |= {tree | {(*above, r)} for r in range(ranks) if (*above, r) not in tree}
        yield from grown
        layer = grown


def paths(parents: tuple[int, ...], ranks: tuple[int, ...]) -> list[Path]:
    listed: list[Path] = []
    for parent, rank in zip(parents, ranks, strict=True):
        listed.append((*(listed[parent] if parent >= 0 else ()), rank))
    return listed


def gain(tree: frozenset[Path] | list[Path], rates: tuple[float, ...]) -> float:
    return sum(prod(rates[r] for r in path) for path in tree)


@pytest.mark.parametrize(("ranks", "depth", "most"), [(2, 4, 6), (3, 3, 5), (4, 2, 5)])
def test_no_tree_is_better(ranks: int, depth: int, most: int) -> None:
    random.seed(ranks)
    trees = list(all_trees(ranks, depth, most))
    for _ in range(12):
        rates = tuple(random.random() for _ in range(ranks))  # in any order of ranks
        for nodes in range(1, most + 1):
            mine = paths(*likeliest_tree(rates, depth, nodes))
            assert len(set(mine)) == len(mine) == nodes and max(map(len, mine)) <= depth
            best = max(gain(tree, rates) for tree in trees if len(tree) == nodes)
            assert gain(mine, rates) == pytest.approx(best)


def test_levels_follow_one_another() -> None:
    mine = paths(*likeliest_tree((0.5, 0.3, 0.1), 4, 20))
    assert mine == sorted(mine, key=lambda path: (len(path), path))
    assert {len(path) for path in mine} == {1, 2, 3, 4}


def test_a_small_depth_holds_fewer_nodes() -> None:
    assert likeliest_tree((0.5, 0.2), 1, 9) == ((-1, -1), (0, 1))
    assert likeliest_tree((0.5, 0.2), 2, 9) == ((-1, -1, 0, 0, 1, 1), (0, 1, 0, 1, 0, 1))
    assert likeliest_tree((0.9,), 3, 9) == ((-1, 0, 1), (0, 0, 0))
    assert likeliest_tree((0.9, 0.1), 0, 9) == ((), ())


def test_sure_children_make_a_chain_and_equal_ones_a_bush() -> None:
    assert likeliest_tree((0.9, 0.1), 8, 4)[0] == (-1, 0, 1, 2)
    assert likeliest_tree((0.01,) * 5, 8, 5)[0] == (-1,) * 5


def test_rates_are_probabilities() -> None:
    with pytest.raises(ValueError, match="rates are probabilities"):
        likeliest_tree((0.5, 1.2), 2, 3)
