"""A smaller model with a cache of its own, beside a target whose law depends on its whole history."""

import itertools

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.policies import Confidence
from mmspec.core.rules import Block, Match, RecursiveRejection, Rejection
from mmspec.core.types import Draft
from mmspec.core.warp import Warp
from mmspec.testing.history import HistoryTarget
from mmspec.testing.oracles import exact_joint
from mmspec.testing.statistics import assert_follows

LARGE = HistoryTarget.random(3, seed=3)
SMALL = LARGE.near(4)
RAGGED = (torch.tensor([[0, 0, 1, 2], [2, 1, 1, 0], [0, 0, 0, 2]]), torch.tensor([1, 0, 3]))


class Cycle:
    """Budgets in turn, empty rounds among them."""

    def __init__(self, *budgets: int) -> None:
        self.budgets = itertools.cycle(budgets)

    def budget(self) -> int:
        return next(self.budgets)

    def trim(self, draft: Draft) -> Draft:
        return draft


@pytest.mark.parametrize("budgets", [(3,), (0, 3), (3, 0, 0, 1), (2, 0), (1,)])
@pytest.mark.parametrize("small", [LARGE, SMALL, HistoryTarget.random(3, 99, sharpness=4.0)])
def test_equal_to_plain_under_match(small, budgets):
    plain = Decoder(LARGE).generate(RAGGED, 40, seed=1, ends=None).units
    drafted = Decoder(LARGE, DraftModel(small), k=3, policy=Cycle(*budgets)).generate(RAGGED, 40, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(plain, drafted.units, strict=True))
    if small is LARGE:
        assert drafted.report.acceptance_rate == 1


@pytest.mark.parametrize(
    ("rule", "policy"),
    [(Rejection(), Cycle(2, 0, 3)), (Block(), Confidence(3, 0.4)), (RecursiveRejection(), None)],
)
def test_exact_law(rule, policy):
    prompt = torch.tensor([[0, 1]]).expand(60_000, -1)

    def sample(seed: int) -> torch.Tensor:
        decoder = Decoder(LARGE, DraftModel(SMALL), rule, k=3, policy=policy)
        state = decoder.start(prompt, 5, seed=seed)
        while not state.finished:
            decoder.advance(state)
        return state.history[:, 2:7]

    assert_follows(sample, exact_joint(LARGE.next_law([0, 1]), 5, 3))


@pytest.mark.parametrize("rule", [Match(), Rejection(), Block()])
def test_its_cache_is_the_true_history_and_its_law_the_one_it_drew_from(rule):
    """After full acceptance, refusals, empty rounds, at an end unit: the law of a draft is recomputed from scratch."""
    decoder = Decoder(LARGE, DraftModel(SMALL), rule, k=3, policy=Cycle(3, 2, 0, 3, 0, 0, 1))
    state = decoder.start(RAGGED, 60, seed=2, ends=None)
    depths = set()
    while not state.finished:
        lengths, root, active = state.known - state.pads - 1, state.root, ~state.done
        packed = state.history.gather(1, (state.pads[:, None] + torch.arange(64)).clamp(max=state.history.shape[1] - 1))
        pending = decoder.speculate(state)
        draft = pending.draft
        if draft.nodes > 1:
            path = Draft.chain(draft.drafted).rooted(root, torch.full((3,), 9))
            expected = SMALL.after(packed, lengths, path)[:, :-1].softmax(-1)
            if draft.law is not None:
                assert torch.allclose(draft.law.probs[active], expected[active], atol=1e-6)
            survival = expected.amax(-1).cumprod(1)
            assert torch.allclose(draft.score[active].exp(), survival[active], atol=1e-5)
        step = decoder.settle(state, pending)
        depths.update(step.verdict.length[active].tolist())
        state.sync()
    assert depths == {0, 1, 2, 3}


def test_no_accepted_unit_is_fed_twice():
    fed = []

    class Counting(HistoryTarget):
        def verify(self, cache, draft):
            fed.append(int(draft.valid.sum()))
            return super().verify(cache, draft)

    output = Decoder(LARGE, DraftModel(Counting(LARGE.table)), k=3).generate(RAGGED, 25, seed=1)
    assert output.report.acceptance_length == 4 and sum(fed) <= output.report.emitted


def test_its_law_is_warped_like_the_targets():
    warp = Warp.sampling(temperature=0.6, top_k=2)
    decoder = Decoder(LARGE, DraftModel(SMALL), Rejection(), k=3)
    state = decoder.start(RAGGED, 20, warp=warp)
    draft = decoder.speculate(state).draft
    assert ((draft.law.probs > 0).sum(-1) == 2).all() and (draft.law.of(draft.drafted) > 0).all()


def test_greedy_drafts_are_greedy():
    warp = Warp.sampling(temperature=0)
    plain = Decoder(LARGE).generate(RAGGED, 40, warp=warp).units
    for rule in (Match(), Rejection(), Block(), RecursiveRejection()):
        drafted = Decoder(LARGE, DraftModel(SMALL), rule, k=3).generate(RAGGED, 40, warp=warp)
        assert all(torch.equal(a, b) for a, b in zip(plain, drafted.units, strict=True))


def test_rows_that_end_early_leave_the_others_alone():
    for end in range(3):
        plain = Decoder(LARGE).generate(RAGGED, 40, seed=1, ends=end).units
        drafted = Decoder(LARGE, DraftModel(SMALL), k=3).generate(RAGGED, 40, seed=1, ends=end).units
        assert all(torch.equal(a, b) for a, b in zip(plain, drafted, strict=True))
        assert len({len(row) for row in plain}) > 1 or end == 2
