"""Sums on devices with and without float64."""

import pytest
import torch

from mmspec.core import transfer
from mmspec.core.tree import TreeIndex
from mmspec.hosts.tree_op import Branches


def test_float64_where_there_is_one() -> None:
    assert transfer.widest(torch.device("cpu")) == transfer.widest(torch.device("cuda")) == torch.float64
    assert transfer.widest(torch.device("mps")) == torch.float32


def test_decays_of_a_draft_are_near_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over 64 nodes, float32 sums of log-decays are off by rounding."""
    steps = -torch.rand(2, 64, 3, generator=torch.Generator().manual_seed(0)) * 4

    def decays() -> torch.Tensor:
        branches = Branches(TreeIndex.chain(64))
        return branches.path_decay(branches.path_sums(steps))

    exact = decays()
    monkeypatch.setattr(transfer, "_WITHOUT_FLOAT64", {"cpu"})
    near = decays()
    assert not torch.equal(near, exact), "the sums are float32 then"
    assert torch.allclose(near, exact, rtol=1e-4, atol=1e-7)
