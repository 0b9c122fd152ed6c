"""The statistical tests themselves: they pass what is right and fail what is slightly wrong."""

import pytest
import torch

from mmspec.testing import statistics
from mmspec.testing.oracles import exact_joint, linear_joint
from mmspec.testing.statistics import joint_p_value, ks_p_value, total_variation
from tests.support import laws
from tests.support.laws import assert_follows, assert_normal

LAW = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.25, 0.25, 0.5]])


def next_distribution(units):
    return LAW[units[-1]] if units else LAW[0]


def drawn(joint):
    def sample(seed, rows):
        cells = torch.multinomial(joint.flatten(), rows, True, generator=torch.Generator().manual_seed(seed))
        return torch.stack(torch.unravel_index(cells, joint.shape), 1)

    return sample


def test_exact_joint_is_the_product_of_the_distributions():
    joint = exact_joint(next_distribution, 3, 3)
    assert joint.sum().item() == pytest.approx(1)
    assert joint[2, 1, 0].item() == pytest.approx(0.2 * 0.25 * 0.1)


def mixed(joint, share):
    return (1 - share) * joint + share / joint.numel()


def test_a_sample_of_the_joint_passes_and_one_of_a_near_joint_fails(monkeypatch):
    joint = exact_joint(next_distribution, 3, 3)
    assert assert_follows(drawn(joint), joint) > 1e-4
    with pytest.raises(AssertionError, match=r"200,000 rows .* total variation 0\.0"):
        assert_follows(drawn(mixed(joint, 0.1)), joint)
    monkeypatch.setattr(laws, "CLEAR", 1.0)
    with pytest.raises(AssertionError, match=r"total variation 0\.00"):
        assert_follows(drawn(mixed(joint, 0.02)), joint)  # total variation 0.007


@pytest.mark.parametrize(
    ("p_values", "looks"),
    [
        ([0.06], [(0, 10_000)]),
        ([0.04, 2e-4], [(0, 10_000), (0, 200_000)]),
        ([0.0, 1e-5, 2e-4], [(0, 10_000), (0, 200_000), (statistics.OTHER_SEED, 200_000)]),
        ([0.0, 1e-5, 1e-5], None),
    ],
)
def test_there_are_up_to_three_looks(monkeypatch, p_values, looks):
    left, seen = list(p_values), []
    monkeypatch.setattr(laws, "CLEAR", 0.05)
    monkeypatch.setattr(laws, "joint_p_value", lambda *given: left.pop(0))

    def sample(seed, rows):
        seen.append((seed, rows))
        return torch.zeros(1, 1, dtype=torch.int64)

    if looks is None:
        with pytest.raises(AssertionError, match="seed 0: p = 1e-05"):
            assert_follows(sample, torch.tensor([0.5, 0.5]))
    else:
        assert assert_follows(sample, torch.tensor([0.5, 0.5])) == p_values[-1] and seen == looks


def test_total_variation():
    joint = torch.tensor([0.5, 0.25, 0.25])
    assert total_variation(torch.tensor([[0], [0], [1], [1]]), joint) == pytest.approx(0.25)


def test_impossible_rows_and_wrong_shapes():
    joint = torch.tensor([0.5, 0.5, 0.0])
    assert joint_p_value(torch.tensor([[0], [1]] * 500 + [[2]]), joint) == 0
    with pytest.raises(ValueError, match="over 1 units"):
        joint_p_value(torch.zeros(10, 2).long(), joint)
    with pytest.raises(ValueError, match="outside"):
        joint_p_value(torch.full((10, 1), 3), joint)


def test_normal_judges_see_means_and_covariances():
    weights = torch.tensor([[0.0, 0.0], [0.5, 0.0]])
    mean, covariance = linear_joint(weights, torch.tensor([1.0, 0.0]), torch.tensor([1.0, 2.0]))
    assert mean.tolist() == [1.0, 0.5]
    torch.testing.assert_close(covariance, torch.tensor([[1.0, 0.5], [0.5, 4.25]], dtype=torch.float64))

    def sample(seed, rows, tie=0.5):
        e = torch.randn(rows, 2, generator=torch.Generator().manual_seed(seed))
        first = 1 + e[:, 0]
        return torch.stack([first, tie * first + (4.25 - tie**2) ** 0.5 * e[:, 1] + 0.5 - tie], 1)

    assert assert_normal(sample, mean, covariance) > 0
    with pytest.raises(AssertionError, match="not normal"):  # the marginals are right
        assert_normal(lambda seed, rows: sample(seed, rows, 0.3), mean, covariance)
    assert ks_p_value(sample(0, 100_000)[:, 0], (1.0, 1.03)) < 1e-4
