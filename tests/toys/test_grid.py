"""Toy image: guidance, Jacobi windows of every initialisation, a smaller model as drafter."""

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.distributions import Mixed
from mmspec.core.rules import Block, Match, Rejection
from mmspec.core.warp import Warp
from mmspec.testing.oracles import exact_joint
from mmspec.testing.statistics import joint_p_value
from tests.support.cases import VOCAB, grid_case
from tests.support.laws import assert_follows

LENGTH = 5
CASE = grid_case()
JOINT = exact_joint(CASE.next_distribution, LENGTH, VOCAB)


def run(drafter, rule, k, rows, seed=0, warp=CASE.warp):
    return Decoder(CASE.target, drafter, rule, k=k).generate(CASE.prompt(rows), LENGTH, seed=seed, warp=warp)


@pytest.mark.parametrize(
    ("name", "rule", "k"),
    [
        (None, Match, 0),
        pytest.param("window random", Rejection, 3, marks=pytest.mark.slow),
        ("window left", Rejection, 8),  # longer than the image
        # short enough for slots that enter later, as those of tests/image/test_joints.py
        pytest.param("window above", Rejection, 2, marks=pytest.mark.slow),
        pytest.param("chain model", Rejection, 3, marks=pytest.mark.slow),
        ("chain model bad", Block, 3),
    ],
)
def test_the_guided_distribution_is_kept(name, rule, k):
    drafter = CASE.drafters[name]() if name else None
    reports = []

    def sample(seed, rows):
        output = run(drafter, rule(), k, rows, seed)
        reports.append(output.report)
        return torch.stack(output.units)

    p = assert_follows(sample, JOINT)
    print(f"p = {p:.4f}, acceptance length {reports[-1].acceptance_length:.2f}")
    if name and name != "chain model bad":
        assert reports[-1].acceptance_length > 1.1


def test_guidance_matters_to_the_oracle():
    units = torch.stack(run(None, Match(), 0, 20_000, warp=Warp()).units)
    assert joint_p_value(units, JOINT) < 1e-10
    unguided = exact_joint(lambda codes: CASE.target.next_logits(1, codes, 1.0).softmax(-1), LENGTH, VOCAB)
    assert joint_p_value(units, unguided) > 1e-4


def test_windows_mix_what_was_drawn_with_what_was_filled_in():
    decoder = Decoder(CASE.target, CASE.drafters["window random"](), Rejection(), k=3)
    state = decoder.start(CASE.prompt(50), 20, warp=CASE.warp)
    for _ in range(4):
        pending = decoder.speculate(state)
        decoder.settle(state, pending)
        state.sync()
    distribution = pending.draft.distribution
    assert isinstance(distribution, Mixed)
    assert distribution.random.any() and not distribution.random.all()


def test_initialisations_fill_from_where_they_say():
    """With a window of one, a slot that was not redrawn holds the initialisation and nothing else."""
    for name, ago in (("window left", 1), ("window above", 2)):
        decoder = Decoder(CASE.target, CASE.drafters[name](), Match(), k=1)
        state = decoder.start(CASE.prompt(200), 20, seed=3, warp=CASE.warp)
        for _ in range(4):
            decoder.advance(state)
        new = ~state.memory.drawn[:, 0]
        expected = state.history.gather(1, state.known[:, None] - ago)[:, 0]
        assert 20 < new.sum() < 180
        assert torch.equal(decoder.speculate(state).draft.drafted[:, 0][new], expected[new])
        assert not torch.equal(expected[new], state.root[new]) or ago == 1


def test_match_over_a_window_saves_passes():
    output = run(CASE.drafters["window left"](), Match(), 4, 2000)
    assert output.report.acceptance_length > 1.3
