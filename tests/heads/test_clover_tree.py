"""The form `clover`, level by level: the published example, both cuts, and what is left of the budget."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from mmspec.core.distributions import Categorical
from mmspec.core.drafters.shapes import Frontier
from mmspec_text.drafters.clover import CloverTree

NODE = tuple[int, int]
"""A unit, and its parent's place in the level before."""


def grown(tree: CloverTree, *levels: Tensor) -> list[list[NODE]]:
    """The nodes of greedy levels, where every node of a level has its distribution in a row of the next one."""
    score, carried, found = torch.zeros(1, 1), None, []
    for depth, chances in enumerate(levels, 1):
        rows = chances.expand(1, score.shape[1], -1)
        frontier = Frontier(Categorical(rows), None, score, True, False, carried)  # type: ignore[arg-type]
        level = tree.level(frontier, depth)
        found.append([(int(level.units[0, i]), int(level.parent[0, i])) for i in level.valid[0].nonzero()[:, 0]])
        score, carried = level.score, level.carried
    return found


def rows(*each: Sequence[float]) -> Tensor:
    """Distributions of the first nodes of a level; of others, which are not valid, anything."""
    first = torch.tensor([*each])
    return torch.cat([first, first[:1].expand(4 - len(each), -1)])


A, B = 0, 1


def test_the_published_example() -> None:
    """Two children of the root; of theirs the two likeliest paths; and nothing is left for the third step."""
    root = torch.tensor([[0.5, 0.29, 0.11, 0.05, 0.05]])
    second = rows([0.79, 0.1, 0.05, 0.03, 0.03], [0.3, 0.1, 0.2, 0.2, 0.2])
    first, further, last = grown(CloverTree(), root, second, second)
    assert first == [(A, 0), (B, 0)] and further == [(A, 0), (A, 1)] and last == []


@pytest.mark.parametrize(
    ("chances", "number"),
    [
        ([0.9, 0.04, 0.03, 0.02, 0.01], 1),  # the best one is drafted, whatever the sum
        ([0.6, 0.14, 0.1, 0.09, 0.07], 1),  # a long tail below a quarter of the best
        ([0.6, 0.16, 0.1, 0.08, 0.06], 2),
        ([0.23, 0.21, 0.2, 0.19, 0.17], 3),  # more than 0.8 with the next one
        ([0.19, 0.17, 0.15, 0.13, 0.12, 0.11, 0.1, 0.03], 4),  # a fifth one would fit, and there are four
    ],
)
def test_the_children_of_a_node(chances: list[float], number: int) -> None:
    (first,) = grown(CloverTree(), torch.tensor([chances]))
    assert first == [(unit, 0) for unit in range(number)]


def test_a_sure_head_drafts_a_chain() -> None:
    """One node a level, so that the budget of four is not spent in three steps; a larger one is, by a wider level."""
    sure = torch.tensor([[0.9, 0.04, 0.03, 0.02, 0.01]])
    assert [len(level) for level in grown(CloverTree(), *[sure] * 3)] == [1, 1, 1]
    wide = torch.tensor([[0.25, 0.25, 0.25, 0.15, 0.1]])
    assert [len(level) for level in grown(CloverTree(), *[wide] * 3)] == [3, 1, 0]
    assert [len(level) for level in grown(CloverTree(8), *[wide] * 3)] == [3, 5, 0]


def test_the_nodes_to_verify_are_those_of_the_levels() -> None:
    tree = CloverTree()
    scores = torch.tensor([[-0.1, -torch.inf, -torch.inf, -torch.inf, -0.3, -2.0, -torch.inf, -torch.inf]])
    chosen = tree.choose(scores)
    assert chosen is not None and {0, 4, 5} <= {*chosen[0].tolist()} and chosen.shape == (1, 4)
    assert tree.width(3) == 4 and tree.fed(3) == 8 and tree.widest == 4
