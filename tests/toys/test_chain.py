"""Denoising chains: windows under reflection keep the joint distribution of tokens, which is Gaussian in closed
form.
"""

from dataclasses import replace

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.distributions import Mixed
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.initialisations import EarlierDistribution, LeftDistribution
from mmspec.core.drafters.jacobi import Jacobi
from mmspec.core.rules import Match, Rejection
from tests.support.cycle import Cycle
from tests.support.toys.chain import ChainTarget, LinearHead
from tests.support.toys.copy_left import CopyLeft
from tests.support.white import white_p_value, whitened

STEPS, WIDTH, LEVEL = 3, 3, 1e-4


def target_of(dim, **options):
    return ChainTarget.random(WIDTH, LinearHead.of(dim, STEPS, **options), seed=0)


def follows(decoder, rows, length):
    """p-value of the joint of the first `length` tokens, with one retry on another seed; and the last report."""
    for seed in (0, 7919):
        output = decoder.generate(rows, length, seed=seed)
        p = white_p_value(whitened(torch.stack(output.units).flatten(1), *decoder.target.joint(length)))
        if p > LEVEL:
            break
    print(f"p = {p:.4f}, acceptance length {output.report.acceptance_length:.2f}")
    return p, output.report


@pytest.mark.parametrize(
    ("dim", "k", "rows", "length", "init"),
    [
        (1, 0, 20_000, 2, LeftDistribution()),
        (1, 1, 20_000, 3, LeftDistribution()),
        (1, 4, 30_000, 6, EarlierDistribution(WIDTH)),
        (4, 3, 10_000, 5, LeftDistribution()),
        (16, 3, 8_000, 3, EarlierDistribution(WIDTH)),
    ],
)
def test_the_joint_of_neighbours_is_kept(dim, k, rows, length, init):
    target = target_of(dim)
    p, report = follows(Decoder(target, Jacobi(init) if k else None, Rejection(), k=k), rows, length)
    assert p > LEVEL
    assert report.acceptance_length > 1.1 if k else report.acceptance_length == 1


def test_windows_that_change_their_width_keep_the_joint():
    decoder = Decoder(target_of(1), Jacobi(EarlierDistribution(WIDTH)), Rejection(), k=4, policy=Cycle(2, 0, 4, 1))
    p, report = follows(decoder, 20_000, 6)
    assert p > LEVEL and report.acceptance_length > 1.1


def test_windows_drawn_anew_keep_the_joint():
    p, report = follows(
        Decoder(target_of(1), Jacobi(LeftDistribution(), independent=True), Rejection(), k=3), 20_000, 5
    )
    assert p > LEVEL and report.acceptance_length > 1.1


def test_a_smaller_model_of_the_family_drafts():
    target = target_of(1)
    small = ChainTarget(replace_bias(target.grid, 0.2), target.head)
    p, report = follows(Decoder(target, DraftModel(small), Rejection(), k=3), 20_000, 4)
    assert p > LEVEL and report.acceptance_length > 1.3


def replace_bias(grid, more):
    return type(grid)(grid.width, grid.left, grid.above, grid.bias + more, grid.sigma)


def test_windows_of_samples_and_copies():
    decoder, kinds = Decoder(target_of(1), Jacobi(CopyLeft()), Rejection(), k=3), []
    state = decoder.start(10_000, 5, seed=3)
    while not state.finished:
        pending = decoder.speculate(state)
        kinds.append(type(pending.draft.distribution))
        decoder.settle(state, pending)
        state.sync()
    tokens = torch.stack(state.output()).flatten(1)
    assert white_p_value(whitened(tokens, *decoder.target.joint(5))) > LEVEL
    assert Mixed in kinds


def test_fillings_never_ask_the_head():
    """One head evaluation per step for all nodes of a pass, prefill included, and none for drafts."""
    target = target_of(4)
    report = Decoder(target, Jacobi(EarlierDistribution(WIDTH)), Rejection(), k=5).generate(8, 12).report
    assert target.head.calls == STEPS * (report.rounds + 1)


def test_drafts_that_follow_their_own_state_are_accepted_more_often():
    length = {}
    for carry in (False, True):
        decoder = Decoder(target_of(4, carry=carry), Jacobi(LeftDistribution()), Rejection(), k=6)
        length[carry] = decoder.generate(300, 18).report.acceptance_length
    assert length[True] > 1.05 * length[False] > 1.05, length


def test_a_row_does_not_depend_on_its_batch():
    decoder = Decoder(target_of(4), Jacobi(EarlierDistribution(WIDTH)), Rejection(), k=4)
    output = decoder.generate(3, 12, seed=[3, 1, 4])
    assert output.report.acceptance_length > 1.2
    for row in range(3):
        alone = decoder.generate(1, 12, seed=[[3, 1, 4][row]]).units[0]
        torch.testing.assert_close(alone, output.units[row], rtol=0, atol=1e-5)


def test_the_rule_of_shared_noise_is_refused():
    with pytest.raises(ValueError, match="discrete"):
        Decoder(target_of(1), Jacobi(LeftDistribution()), Match())


class Breaking(LinearHead):
    """Not finite at step 1, as soon as a row has a token before it."""

    def mean(self, x, step, condition):
        mean = super().mean(x, step, condition)
        return torch.where(torch.tensor(step == 1 and self.calls > STEPS), torch.nan, mean)


@pytest.mark.parametrize("k", [0, 3])
def test_latents_that_are_not_finite_are_named(k):
    head = LinearHead.of(2, STEPS)
    target = ChainTarget.random(WIDTH, Breaking(**vars(head)), seed=0)
    decoder = Decoder(target, Jacobi(LeftDistribution()) if k else None, Rejection(), k=k)
    with pytest.raises(ValueError, match="row 0: new unit 1: the latent of denoising step 1 of 3 is not finite"):
        decoder.generate(2, 4)


def test_conditions_that_are_not_finite_are_named():
    target = target_of(2)
    target.grid.left = torch.full_like(target.grid.left, torch.nan)
    with pytest.raises(ValueError, match="row 0: new unit 0: the condition of the denoising head"):
        Decoder(target, None, Rejection()).generate(2, 4)


@pytest.mark.parametrize(
    ("sigmas", "told"),
    [
        (torch.tensor([0.5, 0.5, 0.0]), r"step 2 of 3 \(the last one\): sigma is 0; a noiseless step"),
        (torch.tensor([0.5, -0.1, 0.5]), r"step 1 of 3: sigma is -0.1"),
        (torch.tensor([0.5, torch.nan, 0.5]), r"step 1 of 3: sigma is nan"),
        (torch.full((3, 2), 0.5), "learned variances"),
        (torch.zeros(0), "one number a denoising step"),
    ],
)
def test_heads_without_a_coupling_are_refused(sigmas, told):
    head = replace(LinearHead.of(2, STEPS), sigmas=sigmas, carry=torch.zeros_like(sigmas))
    target = target_of(2)
    target.head = head
    with pytest.raises(ValueError, match=told):
        Decoder(target, Jacobi(LeftDistribution()), Rejection(), k=2).generate(1, 3)
