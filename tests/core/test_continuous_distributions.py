"""Couplings of continuous tokens against their closed forms: both marginals, and P(y = x)."""

import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import binomtest, norm

from mmspec.core.distributions import (
    DenoisingChain,
    Gaussian,
    GaussianMixture,
    Mixed,
    PointMass,
    Schedule,
    couple,
    drawn_part,
    reflect,
)
from mmspec.core.noise import DraftNoise, Round, Substream
from mmspec.core.philox import PhiloxSource
from mmspec.core.rules import Rejection
from mmspec.core.types import Draft, Scores
from mmspec.testing.oracles import linear_joint
from tests.support.toys.chain import LinearHead
from tests.support.white import white_p_value, whitened

ROWS, LEVEL = 20_000, 1e-4


def round_of(seed: int = 0, rows: int = ROWS) -> Round:
    return Round(PhiloxSource.seeded(seed, rows), torch.zeros(rows, dtype=torch.int64), [0] * rows)


def fresh(seed: int = 0, rows: int = ROWS, nodes: int = 1):
    """Noise of the draft, and of the rule."""
    at = round_of(seed, rows)
    return DraftNoise(at, shared=False).chain(1, nodes), at.fresh(nodes)


# Denoising chains: x_{t+1} ~ N(.8 x_t + c, .5²), six steps, c = .25 (target) and .15 (draft), as in reflect_sim.py.


def head_of(dim: int, steps: int = 6) -> LinearHead:
    return LinearHead(dim, 0.8, 1.0, torch.full((steps,), 0.5), torch.zeros(steps))


def chain_of(dim: int, condition: float, rows: int = ROWS, nodes: int = 1) -> DenoisingChain:
    return DenoisingChain(torch.full((rows, nodes, dim), condition), head_of(dim))


def states_follow(states: torch.Tensor, condition: float) -> float:
    """p-value of whole trajectories `[rows, steps + 1, dim]`: every state's joint with all others."""
    rows, count, dim = states.shape
    weights = torch.diag(torch.full((count - 1,), 0.8), -1)
    sigma = torch.tensor([1.0] + [0.5] * (count - 1))
    bias = torch.tensor([0.0] + [condition] * (count - 1))
    mean, covariance = linear_joint(weights, bias, sigma)
    some = states[:, :, [0, dim - 1]] if dim > 1 else states  # coordinates are alike: two show their dependence
    n = some.shape[2]
    z = whitened(some.transpose(1, 2).reshape(rows * n, count), mean, covariance).reshape(rows, n * count)
    return white_p_value(z)


@pytest.mark.parametrize(("dim", "every", "last"), [(1, 0.78, 0.71), (4, 0.60, 0.46), (16, 0.31, 0.14)])
def test_chains_coupled_at_every_step(dim, every, last):
    """Both marginals, as whole trajectories; tokens are equal as often as measured elsewhere, and more than by the
    last step alone."""
    target, small = chain_of(dim, 0.25), chain_of(dim, 0.15)
    theirs, ours = fresh()
    draws = small.draw(theirs)
    draft = small.with_draws(draws)
    x = small.units(draws)
    coupled = target.couple(draft, x, ours)
    y = target.with_draws(coupled)
    assert states_follow(draft.states[:, 0], 0.15) > LEVEL
    assert states_follow(y.states[:, 0], 0.25) > LEVEL
    torch.testing.assert_close(y.means, 0.8 * y.states[:, :, :-1] + 0.25)
    equal = (target.units(coupled) == x).all(-1).float().mean()
    assert abs(equal - every) < 0.02

    everyone = torch.ones(ROWS, 1, dtype=torch.bool)
    shared = target.with_draws(chain_of(dim, 0.25, nodes=2).along(draft, everyone, ours)[:, :1])
    coin = torch.log(ours.substream(Substream.COIN).uniform())
    tested = reflect(x, draft.means[:, :, -1], shared.means[:, :, -1], 0.5, coin)
    assert states_follow(torch.cat([shared.states[:, 0, :-1], tested], 1), 0.25) > LEVEL
    by_last = (tested == x).all(-1).float().mean()
    assert abs(by_last - last) < 0.02 < equal - by_last


def test_one_pass_couples_some_and_draws_the_others():
    """Nodes with a valid child are coupled as if alone; the others, and the last one, are free draws."""
    target, small = chain_of(4, 0.25, nodes=3), chain_of(4, 0.15, nodes=2)
    theirs, ours = fresh(nodes=3)
    draft = small.with_draws(small.draw(theirs.at(torch.arange(2)[None])))
    follows = torch.tensor([[True, False], [False, True]]).repeat(ROWS // 2, 1)
    draws = target.draw_coupled(draft, small.units(draft.draws), follows, ours)
    nodes = torch.arange(2)[None]
    coupled = target.take(nodes).couple(draft, small.units(draft.draws), ours.at(nodes))
    assert torch.equal(draws[:, :2][follows], coupled[follows])
    free = target.draw(ours)
    assert torch.equal(draws[:, :2][~follows], free[:, :2][~follows]) and torch.equal(draws[:, 2], free[:, 2])
    assert states_follow(target.with_draws(draws).states[:, 1], 0.25) > LEVEL


@pytest.mark.parametrize("carry", [0.0, 0.8])
def test_another_draw_around_known_means_is_a_genuine_one(carry):
    """Without the head: every state is drawn around the mean that the new trajectory reports."""
    distribution = chain_of(4, 0.25)
    distribution = replace(distribution, head=replace(distribution.head, carry=torch.full((6,), carry)))
    theirs, ours = fresh()
    held = distribution.with_draws(distribution.draw(theirs))
    again = held.with_draws(held.draw(ours))
    noise = torch.cat([again.states[:, :, :1], (again.states[:, :, 1:] - again.means) / 0.5], 2)
    other = torch.cat([held.states[:, :, :1], (held.states[:, :, 1:] - held.means) / 0.5], 2)
    assert distribution.head.calls == 6
    assert white_p_value(torch.cat([noise, other], 2).flatten(1).double()) > LEVEL
    if carry:
        torch.testing.assert_close(again.means, 0.8 * again.states[:, :, :-1] + 0.25)
    else:
        assert torch.equal(again.means, held.means)


def test_chains_that_cannot_be_aligned_are_refused():
    target = chain_of(2, 0.25, rows=2)
    noise = round_of(rows=2).fresh(1)

    def draft(head):
        distribution = DenoisingChain(target.condition, head)
        return distribution.with_draws(distribution.draw(noise))

    x = target.condition
    with pytest.raises(ValueError, match="has 4 denoising steps, the target's 6: chains of different lengths"):
        target.couple(draft(head_of(2, steps=4)), x, noise)
    wider = replace(head_of(2), sigmas=torch.tensor([0.5, 0.5, 0.6, 0.5, 0.5, 0.5]))
    with pytest.raises(
        ValueError, match=r"all tokens, denoising step 2 of 6: the draft's sigma is 0.6, the target's 0.5"
    ):
        target.couple(draft(wider), x, noise)
    with pytest.raises(TypeError, match="its trajectory"):
        target.couple(target, x, noise)
    with pytest.raises(TypeError, match="DenoisingChain"):
        draft(head_of(2)).couple(target, x, noise)
    with pytest.raises(ValueError, match=r"carry has \[1\] numbers for 6 steps"):
        Schedule.of(replace(head_of(2), carry=torch.zeros(1)))


def test_a_broken_draft_is_not_followed():
    """A refused node had a latent that is not finite: the target then draws freely."""
    target = chain_of(2, 0.25, rows=4, nodes=2)
    distribution = chain_of(2, 0.15, rows=4)
    draws = distribution.draw(round_of(rows=4).fresh(1).substream(Substream.DRAFT))
    draws[1] = torch.nan
    root, room = torch.zeros(4, 2), torch.ones(4, dtype=torch.int64)
    draft = Draft.chain(distribution.units(draws), distribution.with_draws(draws)).rooted(root, room)
    verdict = Rejection().accept(draft, Scores(target, target.finite()), round_of(rows=4))
    assert torch.equal(verdict.drawn[1], target.draw(round_of(rows=4).fresh(2))[1])
    assert verdict.drawn.isfinite().all() and verdict.unit.shape == (4, 2) and verdict.drawn.shape == (4, 2, 13, 2)


def test_distributions_say_what_of_a_draw_is_the_unit():
    distribution = chain_of(3, 0.25, rows=2)
    draws = distribution.draw(round_of(rows=2).fresh(1))
    held = distribution.with_draws(draws)
    assert torch.equal(distribution.units(draws), held.states[:, :, -1]) and torch.equal(
        held.units(held.draws), distribution.units(draws)
    )
    assert torch.equal(held.take(torch.zeros(1, 2, dtype=torch.int64)).draws, draws.expand(-1, 2, -1, -1))
    mean = torch.zeros(2, 1, 3)
    for simple in (Gaussian(mean, 1.0), mixture_of(torch.zeros(3), rows=2), PointMass(mean)):
        assert simple.with_draws(mean) is simple and simple.units(mean) is mean
    random = torch.tensor([[True], [False]])
    inner, follows = drawn_part(Mixed(held, random, distribution.units(draws)), torch.ones(2, 1, dtype=torch.bool))
    assert inner is held and torch.equal(follows, random)
    assert drawn_part(PointMass(mean), random)[0] is None


# Gaussians whose sigma is a node's own.


def test_gaussians_with_a_sigma_a_node():
    sigma = torch.tensor([[[0.3], [1.5]]])
    target = Gaussian(torch.zeros(ROWS, 2, 2), sigma)
    draft = Gaussian(target.mean + sigma * torch.tensor([0.6, 0.8]), sigma.expand(ROWS, -1, -1))
    theirs, ours = fresh(nodes=2)
    x = draft.draw(theirs)
    y = target.couple(draft, x, ours)
    assert white_p_value((y / sigma).flatten(1).double()) > LEVEL
    equal = (x == y).all(-1)
    for node in (0, 1):
        assert binomtest(int(equal[:, node].sum()), ROWS, 1 - math.erf(1 / (2 * 2**0.5))).pvalue > LEVEL
    second = target.take(torch.tensor([[1]]))
    assert torch.equal(
        Gaussian.cat([second, Gaussian(second.mean, 0.7)]).draw(ours),
        torch.cat(
            [second.draw(ours.at(torch.tensor([[0]]))), Gaussian(second.mean, 0.7).draw(ours.at(torch.tensor([[1]])))],
            1,
        ),
    )


def test_another_sigma_is_refused_where_it_stands():
    mean = torch.zeros(2, 3, 2)
    sigma = torch.full((2, 3, 1), 0.5)
    other = sigma.clone()
    other[1, 2] = 0.75
    with pytest.raises(ValueError, match=r"row 1, drafted token 2, the draft's is 0.75 and the target's sigma 0.5"):
        Gaussian(mean, sigma).couple(Gaussian(mean, other), mean, round_of(rows=2).fresh(3))
    other[1, 2] = -1
    distribution = Gaussian(mean, other)
    assert distribution.finite().tolist() == [[True] * 3, [True, True, False]]
    assert "sigma is -1" in distribution.fault(mean, 1, 2) and not distribution.fault(mean, 0, 0)


# Mixtures.


def mixture_of(
    shift: torch.Tensor, coupling: str = "common", scale: float = 1.0, weights=(0.5, 0.2, 0.3), rows: int = ROWS
) -> GaussianMixture:
    """Components at -2, 0 and 1.5 in every dimension, moved by `shift [dim]`."""
    means = torch.tensor([-2.0, 0.0, 1.5])[:, None] + shift
    sigmas = scale * torch.tensor([0.4, 0.7, 0.5])
    k = len(weights)
    return GaussianMixture(
        torch.tensor(weights).expand(rows, 1, k),
        means[:k].expand(rows, 1, k, len(shift)),
        sigmas[:k].expand(rows, 1, k),
        coupling,
    )


def normals_of(y: torch.Tensor, distribution: GaussianMixture) -> torch.Tensor:
    """`y [rows, 1]` of a one-dimensional mixture by its distribution function."""
    z = (y[..., None].double() - distribution.means[:1, :, :, 0]) / distribution.sigmas[:1]
    return torch.special.ndtri((distribution.weights[:1] * torch.special.ndtr(z)).sum(-1))


def overlap(p: GaussianMixture, q: GaussianMixture) -> float:
    """1 - TV of one-dimensional mixtures, on a grid."""
    x, first = torch.linspace(-9, 9, 90_001)[None, None, :, None], torch.zeros(1, dtype=torch.int64)
    lower = torch.minimum(*(distribution.density.at(first, first).log_density(x) for distribution in (p, q)))
    return float(torch.trapezoid(lower.exp().double().flatten(), x.double().flatten()))


PAIRS = {
    "near": {"shift": torch.tensor([0.1])},
    "far": {"shift": torch.tensor([1.0])},
    "wider": {"shift": torch.tensor([0.2]), "scale": 1.2},
    "other weights": {"shift": torch.tensor([0.2]), "weights": (0.2, 0.5, 0.3)},
    "other components": {"shift": torch.tensor([0.0]), "weights": (0.6, 0.4)},
    "almost equal": {"shift": torch.tensor([1e-3])},
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("coupling", ["common", "maximal"])
@pytest.mark.parametrize("pair", PAIRS)
def test_mixtures_keep_both_marginals(pair, coupling):
    p, q = mixture_of(torch.zeros(1), coupling), mixture_of(**PAIRS[pair], coupling=coupling)
    theirs, ours = fresh()
    x = q.draw(theirs)
    y = p.couple(q, x, ours)
    assert white_p_value(normals_of(x[:, 0], q)) > LEVEL
    assert white_p_value(normals_of(y[:, 0], p)) > LEVEL
    equal, most = int((x == y).sum()), overlap(p, q)
    print(f"{coupling}: equal {equal / ROWS:.3f}, 1 - TV = {most:.3f}")
    if coupling == "maximal" or pair == "other components":
        share = [binomtest(equal, ROWS, most * keep).pvalue for keep in (1, 1 - p.slack)]
        assert max(share) > LEVEL
    elif pair != "wider":
        apart = torch.tensor([float((q.means - p.means)[0, 0, k, 0] / p.sigmas[0, 0, k]) for k in range(3)])
        each = 2 * norm.cdf(-apart.abs() / 2) * torch.minimum(p.weights, q.weights)[0, 0].numpy()
        assert binomtest(equal, ROWS, min(1.0, float(each.sum()))).pvalue > LEVEL
    else:
        assert 0.7 * most < equal / ROWS < most


def test_mixtures_of_wide_tokens_are_reflected_near_by():
    p, q = mixture_of(torch.zeros(16)), mixture_of(torch.full((16,), 0.1))
    theirs, ours = fresh()
    x = q.draw(theirs)
    far = {}
    for coupling in ("common", "maximal"):
        y = replace(p, coupling=coupling).couple(q, x, ours)
        refused = (x != y).any(-1)
        far[coupling] = float((x - y).norm(dim=-1)[refused].mean())
    assert far["common"] < far["maximal"] / 3, far


def test_wrong_mixtures_are_refused():
    p = mixture_of(torch.zeros(2), rows=2)
    with pytest.raises(TypeError, match="Gaussian draft"):
        p.couple(Gaussian(torch.zeros(2, 1, 2), 1.0), torch.zeros(2, 1, 2), round_of(rows=2).fresh(1))
    for slack in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="slack"):
            replace(p, slack=slack)
    with pytest.raises(ValueError, match="common, maximal"):
        replace(p, coupling="best")
    broken = replace(p, sigmas=torch.zeros_like(p.sigmas))
    assert not broken.finite().any() and "sigma is 0" in broken.fault(torch.zeros(2, 1, 2), 0, 0)
    x = torch.zeros(2, 1, 2)
    for one, other in ((p, broken), (broken, p)):  # neither hangs
        for coupling in ("common", "maximal"):
            assert couple(replace(one, coupling=coupling), other, x, round_of(rows=2).fresh(1)).shape == x.shape
