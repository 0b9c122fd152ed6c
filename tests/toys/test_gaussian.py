"""Continuous tokens: a Jacobi window under reflection keeps the joint distribution, which is Gaussian in closed
form.
"""

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.distributions import Mixed
from mmspec.core.drafters.jacobi import Jacobi
from mmspec.core.rules import Block, Match, RecursiveRejection, Rejection
from mmspec.testing.toys.gaussian import GaussianTarget, RepeatLeft
from tests.support.laws import assert_normal
from tests.support.toys.copy_left import CopyLeft

SIGMA = 0.5


@pytest.mark.parametrize(("dim", "k", "rows", "tokens"), [(1, 0, 100_000, 3), (1, 3, 200_000, 4), (4, 8, 100_000, 2)])
def test_the_joint_of_neighbours_is_kept(dim, k, rows, tokens):
    target = GaussianTarget.random(2, dim, seed=0, sigma=SIGMA)
    drafter = Jacobi(RepeatLeft(SIGMA)) if k else None
    decoder = Decoder(target, drafter, Rejection(), k=k)
    lengths = []

    def sample(seed, rows):
        output = decoder.generate(rows, 4, seed=seed)
        lengths.append(output.report.acceptance_length)
        return torch.stack(output.units)[:, :tokens].flatten(1)

    p = assert_normal(sample, *target.joint(tokens), rows)
    print(f"smallest p = {p:.5f}, acceptance length {lengths[-1]:.2f}")
    assert lengths[-1] > 1.4 if k else lengths[-1] == 1


def test_windows_of_samples_and_copies():
    target = GaussianTarget.random(2, 1, seed=0, sigma=SIGMA)
    decoder = Decoder(target, Jacobi(CopyLeft()), Rejection(), k=3)
    kinds = []

    def sample(seed, rows):
        state = decoder.start(rows, 5, seed=seed)
        while not state.finished:
            pending = decoder.speculate(state)
            kinds.append(type(pending.draft.distribution))
            decoder.settle(state, pending)
            state.sync()
        return torch.stack(state.output()).flatten(1)

    assert_normal(sample, *target.joint(5), 100_000)
    assert Mixed in kinds


def test_smooth_targets_accept_more():
    """The gain depends on the target: the less the means depend on their neighbours, the longer the paths."""
    length = {}
    for gain in (0.1, 0.6):
        target = GaussianTarget.random(4, 4, seed=0, gain=gain, sigma=SIGMA)
        decoder = Decoder(target, Jacobi(RepeatLeft(SIGMA)), Rejection(), k=8)
        length[gain] = decoder.generate(500, 16).report.acceptance_length
    assert length[0.1] > 1.2 * length[0.6] > 2, length


def test_a_row_does_not_depend_on_its_batch():
    target = GaussianTarget.random(3, 4, seed=0, sigma=SIGMA)
    decoder = Decoder(target, Jacobi(RepeatLeft(SIGMA)), Rejection(), k=4)
    output = decoder.generate(3, 12, seed=[3, 1, 4])
    assert output.report.acceptance_length > 1.2
    for row in range(3):
        alone = decoder.generate(1, 12, seed=[[3, 1, 4][row]]).units[0]
        torch.testing.assert_close(alone, output.units[row], rtol=0, atol=1e-5)


@pytest.mark.parametrize("rule", [Match, Block, RecursiveRejection])
def test_rules_for_discrete_units_are_refused(rule):
    with pytest.raises(ValueError, match="discrete"):
        Decoder(GaussianTarget.random(2, 1, seed=0), Jacobi(RepeatLeft(SIGMA)), rule())
