"""STree's kernel against the operations of torch that it stands for, and against every path by itself."""

import pytest
import torch
from torch import Tensor

from mmspec.core.tree import TreeIndex
from mmspec.hosts.tree_op import Branches
from mmspec_ssm.ops import ssd
from mmspec_ssm.ops.roll import NodeInputs

SIZES = {"small, odd": (1, 3, 10, 6), "groups": (2, 6, 16, 24), "Mamba-2": (1, 2, 64, 128)}
"""Groups, heads, width of a head, size of the state."""


def tree(nodes: int, rows: int, shared: bool, device: torch.device) -> TreeIndex:
    """Every node behind one of the four before it; the same for all rows, or another one for each."""
    draw = torch.Generator().manual_seed(nodes)
    back = torch.randint(1, 5, (1 if shared else rows, nodes), generator=draw)
    parents = (torch.arange(nodes) - back).clamp(min=0)
    parents[:, 0] = -1
    return TreeIndex.static(parents[0].tolist(), device) if shared else TreeIndex.dynamic(parents.to(device))


def case(
    nodes: int, sizes: tuple[int, ...], shared: bool, device: torch.device
) -> tuple[Branches, Tensor, NodeInputs, Tensor]:
    (groups, heads, width, size), rows = sizes, 2
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw).to(device)

    branches = Branches(tree(nodes, rows, shared, device))
    decay = -normal(rows, nodes, heads).exp()
    fed = NodeInputs(branches.path_sums(decay), normal(rows, nodes, heads, width), normal(rows, nodes, groups, size))
    return branches, normal(rows, heads, width, size), fed, normal(rows, nodes, groups, size)


@pytest.mark.parametrize("shared", [True, False], ids=["one tree", "a tree a row"])
@pytest.mark.parametrize("nodes", [1, 5, 17, 64])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_the_operations_of_torch(device, reference, monkeypatch, sizes, nodes, shared) -> None:
    from mmspec_ssm.ops import tree_scan

    given, launches, scan = case(nodes, sizes, shared, device), [], tree_scan.scan
    monkeypatch.setattr(tree_scan, "scan", lambda *all_: launches.append(1) or scan(*all_))
    found = ssd.scan(*given)
    with reference():
        expected = ssd.scan(*given)
    assert launches == [1] and found.shape == expected.shape and found.is_contiguous()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


def test_every_node_says_what_its_path_says(device) -> None:
    """The recurrence written out, in float64: h ← e^(Δ A) h + Δ x ⊗ B, y = h C."""
    branches, state, fed, c = case(17, SIZES["groups"], False, device)
    found = ssd.scan(branches, state, fed, c).double()
    total, keys, values = fed.total, fed.keys.double(), fed.values.double()
    for row in range(2):
        for node in range(17):
            path = branches.ancestor[row, node].nonzero()[:, 0].tolist()
            for head in range(6):
                held, before = state[row, head].double(), torch.zeros((), dtype=torch.float64, device=device)
                for at in path:
                    step = (total[row, at, head] - before).exp()
                    held = step * held + torch.outer(keys[row, at, head], values[row, at, head // 3])
                    before = total[row, at, head]
                expected = held @ c[row, node, head // 3].double()
                torch.testing.assert_close(found[row, node, head], expected, rtol=1e-4, atol=1e-4)


def test_a_longer_tree_and_other_dtypes_are_torchs(device, monkeypatch) -> None:
    from mmspec_ssm.ops import tree_scan

    monkeypatch.setattr(tree_scan, "scan", None)
    branches, state, fed, c = case(65, SIZES["small, odd"], True, device)
    assert ssd.scan(branches, state, fed, c).shape == fed.keys.shape
    branches, state, fed, c = case(5, SIZES["small, odd"], True, device)
    wide = NodeInputs(fed.total, fed.keys.double(), fed.values.double())
    assert ssd.scan(Branches(branches.index, torch.float64), state.double(), wide, c.double()).dtype == torch.float64
