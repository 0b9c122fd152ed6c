"""Tree operations against their definitions: every path by itself, commits, and what is left behind for them."""

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.tree import TreeIndex
from mmspec.hosts.tree_op import Branches, KeptNodes

ROWS = 3
STATIC = (-1, 0, 0, 1, 1, 2, 3, 5, 6, 0)
CHAIN = tuple(range(-1, 9))
ONE = (-1,)


def ragged(nodes: int, seed: int) -> list[list[int]]:
    """A tree of its own for every row."""
    draw = random.Random(seed)
    return [[-1, *(draw.randrange(max(0, i - 4), i) for i in range(1, nodes))] for _ in range(ROWS)]


TREES: dict[str, Callable[[], list[list[int]]]] = {
    "static": lambda: [list(STATIC)] * ROWS,
    "chain": lambda: [list(CHAIN)] * ROWS,
    "one node": lambda: [list(ONE)] * ROWS,
    "ragged": lambda: ragged(10, 3),
}


def branches_of(parents: list[list[int]], dtype: torch.dtype = torch.float32, reading: bool = True) -> Branches:
    """A tree over which operations are those of whole passes, with their limits; not `reading`, those of steps."""
    shared = all(row == parents[0] for row in parents)
    index = TreeIndex.static(parents[0]) if shared else TreeIndex.dynamic(torch.tensor(parents))
    return Branches(index, dtype, reading)


def path(parents: list[int], node: int) -> list[int]:
    return [*(path(parents, parents[node]) if node else []), node]


def kept(paths: list[list[int]]) -> KeptNodes:
    """Rows keep whole paths from the root, or nothing."""
    longest = max(1, *(len(p) for p in paths))
    beyond = [p[1:] + [-1] * (longest - max(1, len(p))) for p in paths]
    return KeptNodes.along(torch.tensor(beyond, dtype=torch.int64), torch.tensor([len(p) for p in paths]))


def assert_tree(case: Any, parents: list[list[int]], state: Tensor | None, before: Tensor) -> dict[str, Tensor]:
    """One pass: every node says what its path says. Returns the inputs; `before` is the state in float64."""
    inputs = case.inputs(len(parents[0]))
    said, _ = case.over_tree(branches_of(parents), state, inputs)
    for row in range(ROWS):
        for node in range(len(parents[0])):
            alone, _ = case.along(before[row], inputs, row, path(parents[row], node))
            assert torch.allclose(said[row, node].double(), alone, atol=1e-5, rtol=1e-5), (row, node)
    return inputs


@pytest.mark.parametrize("case", ["ssd"], indirect=True)
def test_steps_have_no_limits(case: Any) -> None:
    """Transformers' `mamba2_selective_state_update` has none, so that Zamba2's steps are not its whole pass."""
    inputs, tree = case.inputs(len(STATIC)), [list(STATIC)] * ROWS
    whole, steps = (case.over_tree(branches_of(tree, reading=reading), None, inputs)[0] for reading in (True, False))
    free = dataclasses.replace(case, fixed={**case.fixed, "dt_limit": (0.0, float("inf"))})
    assert torch.equal(steps, free.over_tree(branches_of(tree), None, inputs)[0])
    assert not torch.allclose(steps, whole, atol=1e-3)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("begun", [False, True])
def test_every_node_says_what_its_path_says(case: Any, tree: str, begun: bool) -> None:
    state = torch.randn(ROWS, *case.state) if begun else None
    before = torch.zeros(ROWS, *case.state).double() if state is None else state.double()
    assert_tree(case, TREES[tree](), state, before)


def test_commit_and_go_on(case: Any) -> None:
    """Rows keep paths of several lengths, one of them nothing; the next tree starts from what they kept."""
    parents = ragged(10, 5)
    paths = [path(parents[0], 9), [], path(parents[2], 6)]
    state = torch.randn(ROWS, *case.state)
    given = state.clone()
    inputs = case.inputs(10)
    _, stash = case.over_tree(branches_of(parents), state, inputs)
    rolled = case.op.commit(state, stash, kept(paths))
    assert torch.equal(state, given), "a commit is pure: the cache writes, not the operation"
    assert torch.equal(rolled[1], given[1]), "a row that keeps nothing keeps its state"
    after = torch.stack([case.along(given[row].double(), inputs, row, paths[row])[1] for row in range(ROWS)])
    assert torch.allclose(rolled.double(), after, atol=1e-5, rtol=1e-5)
    assert_tree(case, TREES["static"](), rolled, after)


def test_200_commits_with_empty_rounds(case: Any) -> None:
    """The state does not drift, and rounds without a draft (one node) go the same way."""
    state, truth = None, torch.zeros(ROWS, *case.state).double()
    for number in range(200):
        parents = [[-1]] * ROWS if number % 3 == 1 else ragged(6, number)
        draw = random.Random(number)
        paths = [path(row, draw.randrange(len(row))) if draw.random() > 0.2 else [] for row in parents]
        inputs = case.inputs(len(parents[0]))
        _, stash = case.over_tree(branches_of(parents), state, inputs)
        state = case.op.commit(state, stash, kept(paths))
        truth = torch.stack([case.along(truth[row], inputs, row, paths[row])[1] for row in range(ROWS)])
    assert state is not None and torch.allclose(state.double(), truth, atol=1e-5, rtol=1e-4)
    assert_tree(case, TREES["static"](), state, truth)


def test_siblings_do_not_see_one_another(case: Any) -> None:
    """Other contents of one branch leave all other branches bitwise as they were."""
    parents = TREES["static"]()
    inputs, state = case.inputs(len(STATIC)), torch.randn(ROWS, *case.state)
    said, _ = case.over_tree(branches_of(parents), state, inputs)
    branch = [i for i in range(len(STATIC)) if 2 in path(list(STATIC), i)]
    for x in inputs.values():
        x[:, branch] = torch.rand_like(x[:, branch]) * (-1 if float(x.max()) <= 0 else 1)
    other, _ = case.over_tree(branches_of(parents), state, inputs)
    rest = [i for i in range(len(STATIC)) if i not in branch]
    assert torch.equal(said[:, rest], other[:, rest])
    assert not torch.equal(said[:, branch], other[:, branch])


def test_what_is_left_behind_is_no_more_than_what_was_fed(case: Any) -> None:
    """A further node leaves its activations for the commit, not its state."""

    def sizes(nodes: int) -> tuple[int, int]:
        inputs = case.inputs(nodes)
        _, stash = case.over_tree(branches_of(ragged(nodes, 1)), None, inputs)
        parts = stash if isinstance(stash, tuple) else vars(stash).values()
        return sum(x.numel() for x in parts), sum(x.numel() for x in inputs.values())

    (less, fed), (more, fed_more) = sizes(10), sizes(20)
    assert 0 < more - less <= fed_more - fed


def test_sums_in_float64_do_not_show_how_units_came_in(case: Any) -> None:
    """Ten units in one pass, and each in a pass of its own: one output to the bit, and nearly one state."""
    inputs = {name: x.bfloat16() for name, x in case.inputs(10).items()}
    first = torch.randn(ROWS, *case.state)
    state = first.bfloat16() if case.op.kind == "conv" else first.double()
    whole, stash = case.over_tree(branches_of([list(CHAIN)] * ROWS, torch.float64), state, inputs)
    after = case.op.commit(state, stash, kept([list(range(10))] * ROWS))
    for node in range(10):
        one = {name: x[:, node : node + 1] for name, x in inputs.items()}
        said, stash = case.over_tree(branches_of([list(ONE)] * ROWS, torch.float64), state, one)
        state = case.op.commit(state, stash, kept([[0]] * ROWS))
        assert torch.equal(said[:, 0].bfloat16(), whole[:, node].bfloat16()), node
    assert said.dtype == case.over_tree(branches_of([list(ONE)] * ROWS), None, one)[0].dtype
    assert state.dtype == after.dtype == (torch.bfloat16 if case.op.kind == "conv" else torch.float64)
    assert torch.allclose(state, after, rtol=1e-12, atol=1e-12)


def test_a_shared_tree_keeps_its_tables_and_rows_of_their_own_do_not() -> None:
    shared = Branches.of(TreeIndex.static(STATIC))
    assert Branches.of(TreeIndex.static(STATIC)) is shared and shared.columns(4) is shared.columns(4)
    assert Branches.of(TreeIndex.static(CHAIN)) is not shared
    assert Branches.of(TreeIndex.static(STATIC), torch.float64).dtype == torch.float64 != shared.dtype
    own = TreeIndex.dynamic(torch.tensor(ragged(10, 3)))
    assert Branches.of(own) is not Branches.of(own)
    window = [[5, 2, 0, -1], [9, 0, -1, -2], [0, -1, -2, -3]]
    assert [(shared.columns(4)[0, :, node] - 4).tolist() for node in (5, 9, 0)] == window


def test_weak_gates_behind_strong_ones(case: Any) -> None:
    """Of two sums of thousands the difference is the decay: in float32 it would be rounding."""
    inputs = case.inputs(64)
    for name in {"g", "dt"} & set(inputs):
        inputs[name][:, :48] = -300.0 if name == "g" else 300.0
        inputs[name][:, 48:] = -1e-3 if name == "g" else -6.0
    chain = [list(range(-1, 63))] * ROWS
    said, stash = case.over_tree(branches_of(chain), None, inputs)
    rolled = case.op.commit(None, stash, kept([list(range(64))] * ROWS))
    for row in range(ROWS):
        alone, state = case.along(torch.zeros(case.state).double(), inputs, row, list(range(64)))
        assert torch.allclose(said[row, 63].double(), alone, atol=1e-5, rtol=1e-5)
        assert torch.allclose(rolled[row].double(), state, atol=1e-5, rtol=1e-5)


def test_strong_gates_give_no_nan(case: Any) -> None:
    """Two branches whose decays differ by hundreds: the difference is masked before the exponential."""
    inputs = case.inputs(len(STATIC))
    for name in {"g", "dt"} & set(inputs):
        sign = -1 if name == "g" else 1
        inputs[name] = torch.full_like(inputs[name], sign * 300.0)
        inputs[name][:, [2, 5, 7]] = -1e-3 * torch.ones_like(inputs[name][:, [2, 5, 7]])
    said, stash = case.over_tree(branches_of(TREES["static"]()), None, inputs)
    rolled = case.op.commit(None, stash, kept([[0, 1, 3, 6], [0, 2, 5], []]))
    assert said.isfinite().all() and rolled.isfinite().all()
