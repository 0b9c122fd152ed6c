"""Mixtures of Gaussians: windows under either coupling keep the joint distribution, which is known in closed form."""

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.initialisations import LeftDistribution
from mmspec.core.drafters.jacobi import Jacobi
from mmspec.core.rules import Rejection
from tests.support.toys.mixture import MixtureTarget
from tests.support.white import white_p_value

LEVEL = 1e-4


def follows(decoder, rows, length):
    for seed in (0, 7919):
        output = decoder.generate(rows, length, seed=seed)
        p = white_p_value(decoder.target.normalised(torch.stack(output.units)))
        if p > LEVEL:
            break
    print(f"p = {p:.4f}, acceptance length {output.report.acceptance_length:.2f}")
    return p, output.report


@pytest.mark.parametrize("coupling", ["common", "maximal"])
@pytest.mark.parametrize(("dim", "k", "rows"), [(1, 4, 20_000), (4, 3, 8_000)])
def test_the_joint_of_neighbours_is_kept(dim, k, rows, coupling):
    """Tokens alternate in scale, so that new slots are drafted with another one than the target's."""
    target = MixtureTarget.random(dim, seed=0, coupling=coupling)
    p, report = follows(Decoder(target, Jacobi(LeftDistribution()), Rejection(), k=k), rows, 5)
    assert p > LEVEL and report.acceptance_length > 1.2


@pytest.mark.parametrize("coupling", ["common", "maximal"])
def test_a_smaller_model_of_the_family_drafts(coupling):
    target = MixtureTarget.random(2, seed=0, coupling=coupling)
    small = MixtureTarget(
        target.weights.roll(1), target.offsets + 0.1, 0.8 * target.gain, 1.1 * target.sigmas, coupling
    )
    p, report = follows(Decoder(target, DraftModel(small), Rejection(), k=3), 10_000, 4)
    assert p > LEVEL and report.acceptance_length > 1.2


def test_plain_decoding_follows_the_distribution():
    assert follows(Decoder(MixtureTarget.random(4, seed=1), None, Rejection()), 10_000, 3)[0] > LEVEL


def test_staying_near_pays_in_a_window():
    """`maximal` accepts more slots of a round, but its redraws change all slots to the right."""
    length = {}
    for coupling in ("common", "maximal"):
        target = MixtureTarget.random(16, seed=1, coupling=coupling)
        target.sigmas = target.sigmas[:1].expand(2, -1)
        decoder = Decoder(target, Jacobi(LeftDistribution()), Rejection(), k=12)
        length[coupling] = decoder.generate(40, 24, seed=1).report.acceptance_length
    print(length)
    assert length["common"] > 1.5 * length["maximal"], length


@pytest.mark.parametrize("coupling", ["common", "maximal"])
def test_a_row_does_not_depend_on_its_batch(coupling):
    decoder = Decoder(MixtureTarget.random(2, seed=0, coupling=coupling), Jacobi(LeftDistribution()), Rejection(), k=4)
    output = decoder.generate(3, 12, seed=[3, 1, 4])
    assert output.report.acceptance_length > 1.2
    for row in range(3):
        alone = decoder.generate(1, 12, seed=[[3, 1, 4][row]]).units[0]
        torch.testing.assert_close(alone, output.units[row], rtol=0, atol=1e-5)


def test_a_scale_that_is_none_is_named():
    target = MixtureTarget.random(2, seed=0)
    target.sigmas[1, 2] = 0
    with pytest.raises(ValueError, match="row 0: new unit 1: a component's sigma is 0, which must be positive"):
        Decoder(target, Jacobi(LeftDistribution()), Rejection(), k=2).generate(1, 4)
