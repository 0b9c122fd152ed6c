"""Budgets after what a policy kept, on devices that the host does not wait for."""

import torch

from mmspec.core.budget import Budget
from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.policies import Confidence, Fixed, Trimming
from mmspec.core.types import Draft
from mmspec.testing.toys.history import HistoryTarget


def test_the_bound_follows_what_was_kept() -> None:
    depth = Budget(8, 9)
    for kept, bound in ((3, 4), (4, 8), (0, 1), (1, 2), (2, 4), (4, 8), (8, 8)):
        depth._asked, depth._kept = depth.most, torch.tensor([0, kept])
        depth.arrived([each.tolist() for each in depth.wanted()])
        assert depth.most == bound and not depth.wanted()
    depth.arrived([])
    assert depth.most == 8, "a round without a draft says nothing"


def test_depths_of_trees_and_rows_that_are_done() -> None:
    depth = Budget(8, 9)
    units = torch.zeros(2, 3, dtype=torch.int64, device="meta")
    draft = Draft.tree(units, [-1, 0, 1])
    depth.note(draft, torch.zeros(2, dtype=torch.bool, device="meta"))
    assert depth._asked == 3 and [tuple(each.shape) for each in depth.wanted()] == [(2,)]
    depth = Budget(8, 9)
    depth.note(Draft.chain(torch.zeros(2, 3, dtype=torch.int64)), torch.zeros(2, dtype=torch.bool))
    assert not depth.wanted(), "on the CPU drafts are cut themselves"


def test_a_call_begins_with_every_depth_and_only_trimming_policies_are_asked() -> None:
    assert isinstance(Confidence(3), Trimming) and not isinstance(Fixed(3), Trimming)
    large = HistoryTarget.random(5, seed=0)
    decoder = Decoder(large, DraftModel(large), k=3, policy=Confidence(3, 0.9))
    for _ in range(2):
        state = decoder.start(torch.tensor([[0, 1]]), 9)
        assert state.budget.most == state.budget.k == 3
        decoder.advance(state)
