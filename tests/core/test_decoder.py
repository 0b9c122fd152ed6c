"""The loop: components that do not fit are refused, drafters may fail, policies choose budgets."""

import itertools
import warnings

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.host import HostDrafterAdapter
from mmspec.core.drafters.initialisations import RandomUnit
from mmspec.core.drafters.jacobi import Jacobi
from mmspec.core.policies import Confidence, Fixed
from mmspec.core.rules import Block, Match, Rejection, Synthetic
from mmspec.core.types import Draft
from mmspec.testing.toys.gaussian import GaussianTarget
from mmspec.testing.toys.history import HistoryTarget
from mmspec.testing.toys.markov_drafters import MarkovTree

LARGE = HistoryTarget.random(5, seed=0)
SMALL = LARGE.near(1, 0.3)
PROMPT = torch.tensor([[0, 1], [2, 3], [4, 4]])
TREE = MarkovTree(torch.randn(5, 5, 5), (2, 1))


def units(decoder: Decoder, **options) -> list[list[int]]:
    return [row.tolist() for row in decoder.generate(PROMPT, options.pop("limit", 24), seed=3, **options).units]


PLAIN = units(Decoder(LARGE))


class NoTrees(HistoryTarget):
    offers = frozenset({"discrete"})


@pytest.mark.parametrize(
    ("target", "drafter", "rule", "missing"),
    [
        (LARGE, TREE, Rejection(), "chain"),
        (LARGE, TREE, Block(), "chain"),
        (LARGE, Jacobi(RandomUnit(5)), Block(), "redraw"),
        (NoTrees(LARGE.table), TREE, Match(), "tree"),
        (GaussianTarget.random(3, 1, 0), None, Match(), "discrete"),
        (GaussianTarget.random(3, 1, 0), HostDrafterAdapter(None), Rejection(), "discrete"),
    ],
)
def test_misfits_are_refused_before_anything_runs(target, drafter, rule, missing):
    with pytest.raises(
        ValueError,
        match=rf"cannot be verified: nothing offers .*\b{missing}\b.* \(target: .*Methods that fit the target: ",
    ):
        Decoder(target, drafter, rule)


def test_draft_model_of_another_vocabulary():
    with pytest.raises(ValueError, match="7 unit ids and the target 5"):
        Decoder(LARGE, DraftModel(HistoryTarget.random(7, 0)))


@pytest.mark.parametrize("bad", [{"k": -1}, {"limit": 0}, {"seed": [1, 2]}])
def test_numbers_that_do_not_fit(bad):
    with pytest.raises(ValueError):
        Decoder(LARGE, DraftModel(SMALL), k=bad.get("k", 2)).generate(
            PROMPT, bad.get("limit", 4), seed=bad.get("seed", 0)
        )


class Failing(DraftModel):
    """Raises in every third proposal, half-way: in the second pass of the draft model."""

    calls = 0

    def propose(self, state, k, noise):
        self.calls += 1
        self.left = 2 if self.calls % 3 == 0 else 99
        return super().propose(state, k, noise)

    def _feed(self, *args):
        self.left -= 1
        if not self.left:
            raise RuntimeError("out of paper")
        return super()._feed(*args)


def test_a_drafter_that_fails_costs_a_draft_and_one_warning(monkeypatch):
    monkeypatch.delenv("MMSPEC_STRICT", raising=False)
    decoder = Decoder(LARGE, Failing(SMALL), k=3)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        output = decoder.generate(PROMPT, 24, seed=3)
    assert [row.tolist() for row in output.units] == PLAIN
    assert [str(w.message) for w in seen if "out of paper" in str(w.message)] == [str(seen[0].message)]
    assert output.report.faults >= 2 and "Failing failed (RuntimeError: out of paper)" in str(seen[0].message)


def test_a_perfect_drafter_that_fails_stays_perfect():
    """What a failed proposal left in the drafter's cache is rolled back: all later drafts are accepted."""
    decoder = Decoder(LARGE, Failing(LARGE), k=3)
    with pytest.warns(UserWarning, match="out of paper"):
        report = decoder.generate(PROMPT, 40, seed=3).report
    assert report.faults >= 2 and report.acceptance_rate == 1.0


def test_strict_raises(monkeypatch):
    monkeypatch.setenv("MMSPEC_STRICT", "1")
    with pytest.raises(RuntimeError, match="out of paper"):
        Decoder(LARGE, Failing(SMALL), k=3).generate(PROMPT, 24)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("policy", [Fixed(0), Fixed(2), Confidence(4, 0.05), Confidence(4, 0.6), Fixed(50)])
@pytest.mark.parametrize("drafter", [DraftModel(SMALL), TREE, Jacobi(RandomUnit(5))])
def test_under_match_a_policy_never_changes_the_output(policy, drafter):
    """Also one that wants more than k: the target's cache was made for k (it asserts that)."""
    assert units(Decoder(LARGE, drafter, k=4, policy=policy)) == PLAIN


def test_confidence_cuts_where_survival_falls():
    score = torch.tensor([[0.9, 0.5, 0.2, 0.15], [0.8, 0.7, 0.6, 0.29]]).log()
    chain = Draft.chain(torch.zeros(2, 4, dtype=torch.int64), score=score)
    assert Confidence(4, 0.3).trim(chain).valid.tolist() == [[True, True, False, False], [True, True, True, False]]
    blind = Draft.chain(torch.zeros(2, 4, dtype=torch.int64))
    assert Confidence(4, 0.3).trim(blind) is blind and Confidence(4, 0.3).budget() == 4


def test_a_draft_models_survival_is_known_before_the_draw():
    """The score is the running product of the largest probabilities, whatever was drawn."""
    state = Decoder(LARGE, DraftModel(SMALL), Rejection(), k=4).start(PROMPT, 24)
    decoder = Decoder(LARGE, DraftModel(SMALL), Rejection(), k=4)
    draft = decoder.speculate(state).draft
    assert torch.allclose(draft.score.exp(), draft.distribution.probs.amax(-1).cumprod(1), atol=1e-6)


def test_a_stricter_confidence_drafts_less():
    drafted = [
        Decoder(LARGE, DraftModel(SMALL), k=4, policy=Confidence(4, t)).generate(PROMPT, 40).report.drafted
        for t in (0.01, 0.3, 0.9)
    ]
    assert drafted[0] > drafted[1] > drafted[2]


def test_output_does_not_depend_on_the_batch_for_lossless_rules_either():
    for rule in (Match(), Rejection(), Block()):
        together = Decoder(LARGE, DraftModel(SMALL), rule, k=3).generate(PROMPT, 20, seed=[4, 5, 6]).units
        for row in range(3):
            alone = Decoder(LARGE, DraftModel(SMALL), rule, k=3).generate(PROMPT[row : row + 1], 20, seed=[4 + row])
            assert torch.equal(alone.units[0], together[row]), rule


def test_a_stream_sees_every_sync_and_may_stop():
    seen = []

    def watch(state):
        seen.append([len(row) for row in state.output()])
        if len(seen) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Decoder(LARGE, DraftModel(SMALL), k=3).generate(PROMPT, 40, on_step=watch)
    assert seen[0] == [1, 1, 1] and all(a < b for x, y in itertools.pairwise(seen) for a, b in zip(x, y, strict=True))


def test_truth_is_followed_as_far_as_it_was_drafted():
    decoder = Decoder(LARGE, DraftModel(SMALL), k=3)
    state = decoder.start(PROMPT, 20)
    pending = decoder.speculate(state)
    truth = pending.draft.drafted.clone()
    truth[1, 1] = (truth[1, 1] + 1) % 5
    truth[2, 0] = (truth[2, 0] + 1) % 5
    before = state.emitted.clone()
    step = decoder.settle(state, pending, truth=truth)
    assert (state.emitted - before).tolist() == step.count.tolist() == [3, 2, 1]
    for row, count in enumerate([3, 2, 1]):
        assert state.history[row, 3 : 3 + count].tolist() == truth[row, :count].tolist()
        assert state.root[row] == truth[row, count - 1]


def test_reports_say_what_was_synthetic():
    assert "synthetic" in str(Decoder(LARGE, DraftModel(SMALL), Synthetic(), k=3).generate(PROMPT, 8).report)
