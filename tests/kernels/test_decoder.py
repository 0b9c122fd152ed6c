"""A whole call with kernels emits what a call without them emits."""

import pytest
import torch

from mmspec.core.decoder import Decoder, Output
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.rules import Block, Match, RecursiveRejection, Rejection
from mmspec.core.warp import Warp
from mmspec.testing.toys.history import HistoryTarget
from mmspec.testing.toys.markov_drafters import MarkovTree


@pytest.mark.parametrize("rule", [Match, Rejection, Block, RecursiveRejection])
def test_calls(device, reference, rule):
    if device.type != "cpu":
        pytest.skip("the toys live on the CPU")
    target = HistoryTarget.random(7, 0)
    prompt = torch.tensor([[1, 2], [3, 4]])

    def texts() -> list[list[int]]:
        decoder = Decoder(target, DraftModel(target.near(1)), rule(), k=3)
        output = decoder.generate(prompt, 12, seed=5, warp=Warp.sampling(0.8, top_k=5))
        assert output.report.accepted
        return [units.tolist() for units in output.units]

    found = texts()
    with reference():
        assert texts() == found


def test_a_tree_under_match(device, reference):
    if device.type != "cpu":
        pytest.skip("the toys live on the CPU")
    target = HistoryTarget.random(7, 0)

    tree = MarkovTree(torch.randn(7, 7, 7, generator=torch.Generator().manual_seed(0)))

    def output(drafter: MarkovTree | None) -> Output:
        return Decoder(target, drafter, k=3).generate(torch.tensor([[1, 2]]), 20, seed=5)

    with reference():
        plain = output(None).units[0].tolist()
    found = output(tree)
    assert found.units[0].tolist() == plain == output(None).units[0].tolist()
    assert found.report.accepted and not found.report.faults
