"""Trees and the walk, against slow Python on random ones."""

import random

import pytest
import torch

from mmspec.core.rules import walk
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft


def random_parents(rng: random.Random, nodes: int) -> list[int]:
    return [-1] + [rng.randrange(i) for i in range(1, nodes)]


def path_of(parents: list[int], node: int) -> list[int]:
    """From the root to the node, both included."""
    return [*path_of(parents, parents[node]), node] if parents[node] >= 0 else [node]


def assert_is(index: TreeIndex, row: int, parents: list[int]) -> None:
    for node in range(len(parents)):
        path = path_of(parents, node)
        assert index.depth[row, node] == len(path) - 1
        assert index.ancestor[row, node].nonzero()[:, 0].tolist() == path
        assert index.rank[row, node] == parents[:node].count(parents[node])


@pytest.mark.parametrize("seed", range(20))
def test_static_and_dynamic_trees(seed):
    rng = random.Random(seed)
    nodes = rng.randrange(1, 12)
    rows = [random_parents(rng, nodes) for _ in range(3)]
    dynamic = TreeIndex.dynamic(torch.tensor(rows))
    for row, parents in enumerate(rows):
        static = TreeIndex.static(parents)
        assert_is(static, 0, parents)
        assert_is(dynamic, row, parents)
        assert static.deepest == static.depth.max() <= dynamic.deepest
        assert static.widest == static.rank.max() + 1 <= dynamic.widest
        assert static.is_chain == (parents == list(range(-1, nodes - 1)))
    assert dynamic.nodes == nodes and (not dynamic.is_chain or nodes <= 2)


@pytest.mark.parametrize("seed", range(20))
def test_trees_grow_level_by_level(seed):
    """The tree of a tree's nodes and their new children is that of all of them."""
    rng = random.Random(seed)
    rows, first = [[-1], [-1], [-1]], 0
    index = TreeIndex.chain(1)
    for _ in range(4):
        nodes, n = len(rows[0]), rng.randrange(1, 5)
        parents = [[rng.randrange(first, nodes) for _ in range(n)] for _ in rows]
        parents = [parents[0]] * 3 if rng.random() < 0.3 else parents
        alike = parents[0] == parents[1] == parents[2]
        new = torch.tensor(parents[:1] if alike else parents)
        rows, first = [own + more for own, more in zip(rows, parents, strict=True)], nodes
        index = index.extended(new, 4, 4)
        whole = TreeIndex.dynamic(torch.tensor(rows))
        for name in ("parent", "depth", "ancestor", "rank"):
            found = getattr(index, name)
            assert torch.equal(found.expand_as(getattr(whole, name)), getattr(whole, name))


def test_a_long_chain_reaches_its_root():
    for index in (TreeIndex.chain(65), TreeIndex.dynamic(torch.arange(-1, 64)[None])):
        assert index.depth[0].tolist() == list(range(65))
        assert torch.equal(index.ancestor[0], torch.ones(65, 65).tril().bool())


@pytest.mark.parametrize("parents", [[], [0], [-1, 1], [-1, 0, 2], [-1, -1], [-1, 0, -2]])
def test_bad_parents_are_refused(parents):
    with pytest.raises(ValueError, match="precede their children"):
        TreeIndex.static(parents)


def test_drafts_count_from_the_first_drafted_node():
    units = torch.tensor([[5, 6, 7]])
    static = Draft.tree(units, [-1, 0, -1]).rooted(torch.tensor([4]), torch.tensor([9]))
    dynamic = Draft.tree(units, torch.tensor([[-1, 0, -1]])).rooted(torch.tensor([4]), torch.tensor([9]))
    for draft in (static, dynamic):
        assert draft.units.tolist() == [[4, 5, 6, 7]]
        assert_is(draft.index, 0, [-1, 0, 1, 0])
    tight = Draft.tree(units, [-1, 0, -1]).rooted(torch.tensor([4]), torch.tensor([1]))
    assert tight.valid.tolist() == [[True, True, False, True]]


def slow_walk(parents, units, valid, drawn):
    path, node = [], 0
    while True:
        child = [c for c in range(len(parents)) if parents[c] == node and valid[c] and units[c] == drawn[node]]
        if not child:
            return path, drawn[node]
        (node,) = child  # siblings are distinct
        path.append(node)


def random_case(rng: random.Random, nodes: int):
    """A tree with distinct siblings, some invalid nodes, and draws that often hit a child."""
    parents, units = random_parents(rng, nodes), [0]
    for node in range(1, nodes):
        siblings = {units[i] for i in range(1, node) if parents[i] == parents[node]}
        units.append(rng.choice([u for u in range(nodes) if u not in siblings]))
    children = [[c for c in range(nodes) if parents[c] == n] for n in range(nodes)]
    drawn = [
        units[rng.choice(children[n])] if children[n] and rng.random() < 0.8 else rng.randrange(nodes)
        for n in range(nodes)
    ]
    return parents, units, [True] + [rng.random() < 0.85 for _ in range(1, nodes)], drawn


@pytest.mark.parametrize("nodes", [1, 2, 5, 9])
def test_walk(nodes):
    """150 ragged trees of each size in one batch; units that are vectors, too."""
    rng = random.Random(nodes)
    cases = [random_case(rng, nodes) for _ in range(150)]
    parents, units, valid, drawn = (torch.tensor(column) for column in zip(*cases, strict=True))
    draft = Draft(units, TreeIndex.dynamic(parents), valid)
    vectors = Draft(torch.stack([units, -units], -1), draft.index, valid)
    lengths = []
    for verdict in (walk(draft, drawn), walk(vectors, torch.stack([drawn, -drawn], -1))):
        for row, case in enumerate(cases):
            path, unit = slow_walk(*case)
            assert verdict.path[row].tolist() == path + [-1] * (verdict.path.shape[1] - len(path))
            assert verdict.length[row] == len(path)
            assert verdict.unit[row].flatten()[0] == unit
            lengths.append(len(path))
    assert nodes < 5 or max(lengths) >= 3  # the cases do exercise the walk


def test_walk_of_a_shared_tree_is_the_walk_of_each_row():
    parents = [-1, 0, 0, 1, 1, 2, 4]
    rng = random.Random(0)
    cases = [random_case(rng, 7) for _ in range(100)]
    units, valid, drawn = (torch.tensor(column) for column in list(zip(*cases, strict=True))[1:])
    units[:, 1:] = torch.tensor([1, 2, 1, 2, 1, 1])
    drawn = drawn % 3
    verdict = walk(Draft(units, TreeIndex.static(parents), valid), drawn)
    for row in range(100):
        path, unit = slow_walk(parents, units[row].tolist(), valid[row].tolist(), drawn[row].tolist())
        assert verdict.path[row, : len(path)].tolist() == path and verdict.length[row] == len(path)
        assert verdict.unit[row] == unit
