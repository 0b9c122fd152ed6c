"""Couplings against their closed forms: the distribution of y, and P(y = x)."""

import math

import pytest
import torch
from scipy.stats import binomtest

from mmspec.core.distributions import Categorical, Gaussian, Mixed, PointMass, couple, dense, take_nodes
from mmspec.core.noise import DraftNoise, Round
from mmspec.core.philox import PhiloxSource
from mmspec.testing.statistics import joint_p_value, ks_p_value
from tests.support.laws import assert_normal

ROWS = 50_000
P = torch.tensor([0.45, 0.05, 0.0, 0.3, 0.2])
Q = torch.tensor([0.1, 0.4, 0.1, 0.3, 0.1])


def round_of(seed: int = 0, rows: int = ROWS) -> Round:
    return Round(PhiloxSource.seeded(seed, rows), torch.zeros(rows, dtype=torch.int64), [0] * rows)


def everywhere(probs: torch.Tensor, ids: torch.Tensor | None = None, rows: int = ROWS) -> Categorical:
    spread = None if ids is None else ids.expand(rows, 1, -1)
    return Categorical(probs.expand(rows, 1, -1), spread, 5 if ids is not None else 0)


def sparse(probs: torch.Tensor) -> Categorical:
    """The same distribution on its support only, in another order."""
    ids = probs.nonzero()[:, 0].flip(0)
    return everywhere(probs[ids], ids)


def maximal(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Joint of (x, y) under the maximal coupling with independent residuals."""
    p, q = p.double(), q.double()
    more, less = (p - q).clamp(min=0), (q - p).clamp(min=0)
    off = torch.outer(less, more) / more.sum() if more.sum() > 0 else torch.zeros(5, 5)
    return torch.diag(torch.minimum(p, q)) + off


@pytest.mark.parametrize("target", [everywhere, sparse])
@pytest.mark.parametrize("draft", [everywhere, sparse])
def test_categorical_coupling_is_the_maximal_one(target, draft):
    at = round_of()
    q = draft(Q)
    x = q.draw(DraftNoise(at, shared=False).chain(1, 1))
    y = target(P).couple(q, x, at.fresh(1))
    pairs = torch.cat([x, y], 1)
    assert joint_p_value(pairs, maximal(P, Q)) > 1e-4  # its margin is p, its diagonal 1 - TV
    assert joint_p_value(y, P) > 1e-4


def test_coupling_of_disjoint_supports_never_keeps_and_of_equal_distributions_always():
    at = round_of()
    left, right = torch.tensor([0.5, 0.5, 0, 0, 0]), torch.tensor([0, 0, 0.2, 0.3, 0.5])
    x = everywhere(left).draw(DraftNoise(at, shared=False).chain(1, 1))
    y = sparse(right).couple(sparse(left), x, at.fresh(1))
    assert joint_p_value(y, right) > 1e-4
    for same in (everywhere(Q), sparse(Q)):
        x = same.draw(DraftNoise(at, shared=False).chain(1, 1))
        assert torch.equal(same.couple(same, x, at.fresh(1)), x)


def test_dense_and_sparse_distributions_draw_alike():
    noise = round_of().fresh(1)
    assert torch.equal(everywhere(P).draw(noise), sparse(P).draw(noise))
    assert joint_p_value(everywhere(P).draw(noise), P) > 1e-4


def test_top_renormalises_and_reports_every_probability():
    distribution = Categorical.top(everywhere(Q, rows=1), 2)
    expected = torch.tensor([0, 4 / 7, 0, 3 / 7, 0])
    assert torch.allclose(distribution.on(None)[0, 0], expected)
    assert (
        torch.allclose(distribution.of(torch.tensor([[1]])), expected[1]) and distribution.of(torch.tensor([[0]])) == 0
    )
    two = Categorical.cat([distribution, distribution]).take(torch.tensor([[1]]))
    assert torch.allclose(two.on(None)[0, 0], expected)


def test_a_race_orders_siblings_as_draws_without_replacement():
    order = everywhere(Q).race(round_of().fresh(1)).topk(2, -1).indices[:, 0]
    q = Q.double()
    joint = torch.stack([q[a] * torch.where(torch.arange(5) == a, 0, q) / (1 - q[a]) for a in range(5)])
    assert joint_p_value(order, joint) > 1e-4


@pytest.mark.parametrize("shift", [0.2, 1.0, 2.5])
def test_gaussian_reflection(shift):
    """y has the target's distribution; P(y = x) = 1 - erf(|D| / (2 sqrt 2)) with D the distance of the means in
    sigmas.
    """
    sigma, mean = 0.7, torch.tensor([0.6, -0.3])
    away = mean + sigma * shift * torch.tensor([0.6, 0.8])
    kept = []

    def sample(seed: int, rows: int) -> torch.Tensor:
        at = round_of(seed, rows)
        target, draft = (Gaussian(m.expand(rows, 1, 2), sigma) for m in (mean, away))
        x = draft.draw(DraftNoise(at, shared=False).chain(1, 1))
        y = target.couple(draft, x, at.fresh(1))
        kept.append((x == y).flatten(1).all(1))
        return y[:, 0]

    assert_normal(sample, mean, sigma**2 * torch.eye(2, dtype=torch.float64), ROWS)
    assert binomtest(int(kept[-1].sum()), len(kept[-1]), 1 - math.erf(shift / (2 * 2**0.5))).pvalue > 1e-4


def test_gaussian_draft_must_have_the_targets_sigma():
    mean = torch.zeros(2, 1, 3)
    with pytest.raises(ValueError, match=r"0.6 and the target.s sigma 0.5"):
        Gaussian(mean, 0.5).couple(Gaussian(mean, 0.6), mean, round_of(rows=2).fresh(1))
    with pytest.raises(TypeError):
        Gaussian(mean, 0.5).couple(Categorical(torch.ones(2, 1, 1)), mean, round_of(rows=2).fresh(1))
    with pytest.raises(ValueError, match="one sigma"):
        Gaussian.cat([Gaussian(mean, 0.5), Gaussian(mean, 0.6)])
    for sigma in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="sigma"):
            Gaussian(mean, sigma)


def test_equal_gaussians_always_keep():
    distribution, at = Gaussian(torch.randn(64, 1, 3), 0.3), round_of(rows=64)
    x = distribution.draw(DraftNoise(at, shared=False).chain(1, 1))
    assert torch.equal(distribution.couple(distribution, x, at.fresh(1)), x)


def test_mixed_couples_what_was_drawn_and_draws_at_point_masses():
    at = round_of()
    distribution = Categorical(Q.expand(ROWS, 2, -1))
    x = distribution.draw(DraftNoise(at, shared=False).chain(1, 2))
    x[:, 1] = 3
    mixed = Mixed(distribution, torch.tensor([[True, False]]).expand(ROWS, -1), x)
    y = couple(Categorical(P.expand(ROWS, 2, -1)), mixed, x, at.fresh(2))
    assert joint_p_value(torch.stack([x[:, 0], y[:, 0]], 1), maximal(P, Q)) > 1e-4
    assert joint_p_value(y[:, 1:], P) > 1e-4
    assert torch.equal(mixed.take(torch.tensor([[1]])).draw(at.fresh(1)), x[:, 1:])
    told = dense(mixed, x, 5)
    assert torch.equal(told[0, 0], Q) and torch.equal(told[0, 1], torch.eye(5)[3])


def test_a_point_mass_is_not_coupled_but_drawn():
    at, x = round_of(), torch.full((ROWS, 1), 3)
    distribution = everywhere(P)
    for draft in (None, PointMass(x)):
        assert torch.equal(couple(distribution, draft, x, at.fresh(1)), distribution.draw(at.fresh(1)))
    truth = PointMass(x)
    assert torch.equal(couple(truth, everywhere(Q), x + 1, at.fresh(1)), x)


def test_families_do_not_mix():
    x = torch.zeros(2, 1, dtype=torch.int64)
    with pytest.raises(TypeError, match="categorical"):
        Categorical(torch.ones(2, 1, 1)).couple(Gaussian(torch.zeros(2, 1, 1), 1.0), x, round_of(rows=2).fresh(1))
    with pytest.raises(TypeError, match="categorical"):
        dense(Gaussian(torch.zeros(2, 1, 1), 1.0), x, 5)


def test_gaussian_draws_follow_their_distribution():
    drawn = Gaussian(torch.full((ROWS, 1, 1), 2.0), 0.25).draw(round_of().fresh(1))
    assert ks_p_value(drawn.flatten(), (2.0, 0.25)) > 1e-4


def test_finite_sees_nan_and_all_minus_inf():
    logits = torch.zeros(1, 4, 3)
    logits[0, 1, 2] = torch.nan
    logits[0, 2] = -torch.inf
    logits[0, 3, 1:] = -torch.inf
    distribution = Categorical.of_logits(logits)
    assert distribution.finite().tolist() == [[True, False, False, True]]
    assert not Categorical(torch.zeros_like(distribution.probs)).finite().any(), "no mass is no distribution"
    mean = torch.zeros(1, 2, 2)
    mean[0, 1, 0] = torch.inf
    assert Gaussian(mean, 1.0).finite().tolist() == [[True, False]]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("unit", [(), (4,), (2, 3)])
@pytest.mark.parametrize("nodes", [[[2, 0, 0, 4]], [[1], [3], [3]], [[]]])
def test_nodes_are_taken_row_by_row(rows: int, unit: tuple[int, ...], nodes: list[list[int]]) -> None:
    values, index = torch.randn(rows, 5, *unit), torch.tensor(nodes, dtype=torch.int64)[:rows]
    for given in (values, values[:1].expand(rows, 5, *unit)):
        taken = take_nodes(given, index)
        wanted = [given[row, index[row % len(index)]] for row in range(rows)]
        assert torch.equal(taken, torch.stack(wanted))
