"""The rule `tempered`: its draws against a slow oracle, its measured bias and the bound, and what it refuses."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import binomtest, kstest, norm

from mmspec.core.decoder import Decoder
from mmspec.core.distributions import DenoisingChain, Gaussian
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.initialisations import LeftDistribution
from mmspec.core.drafters.jacobi import Jacobi
from mmspec.core.noise import DraftNoise, Round, Substream
from mmspec.core.philox import PhiloxSource
from mmspec.core.report import Bias
from mmspec.core.rules import Rejection
from mmspec.core.types import Draft, Scores
from mmspec.testing.toys.degenerate import DegenerateDrafts
from mmspec.testing.toys.gaussian import GaussianTarget
from mmspec_continuous.drafters.draft_model import ContinuousDraftModel, DraftModelOptions
from mmspec_continuous.drafters.jacobi import ContinuousJacobi
from mmspec_continuous.pipeline import ContinuousTextToImagePipeline
from mmspec_continuous.rules.tempered import LastStep, Tempered, TemperedOptions
from mmspec_continuous.targets.continuous import ContinuousTarget
from tests.support.close import assert_near
from tests.support.examples.continuous import captions, draft_model, tiny
from tests.support.toys.chain import ChainTarget, LinearHead
from tests.support.toys.mixture import MixtureTarget
from tests.support.white import white_p_value, whitened

LEVEL, ROWS, SIGMA = 1e-4, 20_000, 0.4


class Oracle:
    """One node by quadrature, along the line through two means that are `apart` standard deviations apart."""

    def __init__(self, apart, tau, log_factor, tries):
        self.apart, self.tau, self.log_factor = apart, tau, log_factor
        self.kept, hit = self.integral(self.keeps), self.integral(self.left)
        self.missed, self.hit = (1 - hit) ** tries, max(hit, 1e-300)

    def keeps(self, u):
        log_ratio = self.apart**2 / 2 - u * self.apart
        return norm.pdf(u, self.apart) * math.exp(min(0.0, log_ratio / self.tau + self.log_factor))

    def left(self, u):
        return max(0.0, norm.pdf(u) - norm.pdf(u, self.apart) / math.exp(self.log_factor))

    def out(self, u):
        rest = (1 - self.missed) * self.left(u) / self.hit + self.missed * norm.pdf(u)
        return self.keeps(u) + (1 - self.kept) * rest

    def integral(self, f):
        middle = sorted({0.0, self.apart / 2, self.apart})
        return quad(f, -9.0, self.apart + 9.0, points=middle, limit=200)[0]

    @property
    def tv(self):
        return self.integral(lambda u: abs(self.out(u) - norm.pdf(u))) / 2

    @property
    def excess_acceptance(self):
        return self.kept - 2 * norm.cdf(-self.apart / 2)


CASES = {
    "exact": (1.2, 1.0, 0.0, 100),
    "tempered": (1.2, 42.0, 0.0, 100),
    "a little": (2.5, 2.0, 0.0, 100),
    "the paper's factor": (1.0, 1.0, -0.6, 100),
    "the released factor": (1.0, 42.0, 0.7, 100),
    "two tries": (0.7, 1.0, 0.0, 2),
    "far apart": (9.0, 42.0, 0.0, 100),
    "nothing left": (0.5, 1.0, -3.0, 3),
    "nothing apart": (0.0, 1.0, -0.2, 10),
}
"""Distance of the means, tau, logarithm of the factor, tries."""
UNBIASED = {"exact", "nothing left", "nothing apart"}
"""Cases in which every refused draft is redrawn from the target's distribution itself."""


def step_of(apart, log_factor, rows=1):
    """Three dimensions, the means on a line through two of them."""
    line = torch.tensor([0.6, -0.8, 0.0])
    mean = torch.tensor([5.0, -3.0, 1.0]).expand(rows, 1, 3)
    return LastStep(mean, mean + SIGMA * apart * line, SIGMA, log_factor), line


@pytest.mark.parametrize("case", CASES)
def test_the_measured_bias_is_the_oracles(case):
    apart, tau, log_factor, tries = CASES[case]
    oracle, (step, _) = Oracle(*CASES[case]), step_of(apart, log_factor)
    tv, excess_acceptance = (float(values) for values in step.bias(tau, tries))
    assert tv == pytest.approx(oracle.tv, abs=1e-3) and excess_acceptance == pytest.approx(
        oracle.excess_acceptance, abs=1e-3
    )
    assert (tv < 4e-3) == (case in UNBIASED)
    if case in ("tempered", "a little", "far apart"):  # the excess acceptance is the whole error
        assert tv == pytest.approx(excess_acceptance, abs=1e-3)


@pytest.mark.parametrize("case", CASES)
def test_what_comes_out_of_a_node_follows_the_oracle(case):
    apart, tau, log_factor, tries = CASES[case]
    oracle, (step, line) = Oracle(*CASES[case]), step_of(apart, log_factor, ROWS)
    noise = PhiloxSource.seeded(3, ROWS).fresh(torch.zeros(ROWS, dtype=torch.int64), 0, 1)
    x = Gaussian(step.draft, SIGMA).draw(noise.substream(Substream.DRAFT))
    kept = noise.substream(Substream.COIN).uniform().log() < step.log_ratio(x, tau)
    assert binomtest(int(kept.sum()), ROWS, min(1.0, oracle.kept)).pvalue > LEVEL
    y = torch.where(kept[..., None], x, step.residual(noise, tries))
    z = ((y - step.mean) / SIGMA)[:, 0].double()
    grid = np.linspace(-9, apart + 9, 1001)
    density = np.array([oracle.out(u) for u in grid])
    cdf = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(grid))])
    assert kstest(np.interp((z * line).sum(-1), grid, cdf), "uniform").pvalue > LEVEL
    across = torch.stack([z @ torch.tensor([0.8, 0.6, 0.0], dtype=torch.float64), z[:, 2]], 1)
    assert white_p_value(across) > LEVEL and bool((y != 0).all())


KNOWN = {"paper": 1.0, "released": 1764.0}


@pytest.mark.parametrize("name", KNOWN)
def test_published_constants_by_hand(name):
    """Means 8 sigma apart; at the draft's mean the exponent is -32 / tau, and over all drafts an integral of z."""
    rule, (step, _) = Tempered(TemperedOptions(tau=name)), step_of(8.0, 0.0)
    assert rule.tau == KNOWN[name]
    assert float(step.log_ratio(step.draft, rule.tau)) == pytest.approx(-32 / KNOWN[name], rel=1e-5)
    kept = quad(lambda z: norm.pdf(z) * math.exp(min(0.0, (-32 - 8 * z) / KNOWN[name])), -9, 9, points=[-4])[0]
    assert Oracle(8.0, rule.tau, 0.0, 100).kept == pytest.approx(kept, abs=1e-6)
    assert round(kept, 3) == {"paper": 0.0, "released": 0.982}[name]
    exact = 2 * norm.cdf(-4.0)
    assert float(step.bias(rule.tau, 100)[1]) == pytest.approx(kept - exact, abs=1e-3)


def test_the_constant_between_the_two_is_the_cards():
    assert Tempered().tau == 42 and round(Oracle(8.0, 42.0, 0.0, 100).kept, 3) == 0.475


def near_by(dim=2):
    """A target of denoising chains, and a draft model with perturbed weights."""
    target = ChainTarget.random(3, LinearHead.of(dim, 3), seed=0)
    grid = target.grid
    return target, ChainTarget(GaussianTarget(3, grid.left, grid.above, grid.bias + 0.3, grid.sigma), target.head)


def test_more_is_altered_where_more_is_accepted():
    target, small = near_by()
    reports = []
    for tau in (1.0, 3.0, 42.0):
        rule = Tempered(TemperedOptions(tau=tau))
        reports.append(Decoder(target, DraftModel(small), rule, k=3).generate(500, 8, seed=1).report)
    assert reports[0].bias.tv < 0.004 < 5 * reports[1].bias.tv < 20 * reports[2].bias.tv
    assert reports[0].acceptance_length < reports[1].acceptance_length < reports[2].acceptance_length
    assert reports[2].bias.excess_acceptance > 0.1
    assert "(lossy)" in str(reports[2]) and "expected altered units per row" in str(reports[2])


@pytest.mark.parametrize("drafter", [lambda small: DraftModel(small), lambda small: Jacobi(LeftDistribution())])
def test_measuring_changes_no_token_and_can_be_left_out(drafter):
    target, small = near_by()
    made = []
    for measure in (True, False):
        decoder = Decoder(target, drafter(small), Tempered(TemperedOptions(measure=measure)), k=3)
        made.append(decoder.generate(20, 8, seed=4))
    assert all(torch.equal(a, b) for a, b in zip(made[0].units, made[1].units, strict=True))
    assert made[0].report.bias.altered > 0 and made[1].report.bias is None


def test_plain_decoding_is_not_altered():
    target, _ = near_by()
    output = Decoder(target, None, Tempered()).generate(5, 4)
    assert output.report.bias == Bias(0.0, 0.0, 0.0) and output.report.exactness == "lossy"


def test_a_round_is_measured_where_the_walk_came_to():
    """Against the bias computed again from the distributions that were compared."""
    target, small = near_by()
    decoder = Decoder(target, DraftModel(small), Tempered(TemperedOptions(tau=5.0)), k=3)
    state = decoder.start(40, 8, seed=2)
    total = 0.0
    while not state.finished:
        pending = decoder.speculate(state)
        step = decoder.settle(state, pending)
        state.sync()
        distribution, draft = step.scores.distribution, step.draft
        if draft.nodes == 1:
            continue
        means = distribution.with_draws(step.verdict.drawn).means[:, :-1, -1]
        tv, _ = LastStep(means, draft.distribution.means[:, :, -1], distribution.schedule.sigmas[-1]).bias(5.0, 100)
        emitted = step.verdict.emitted(step.count)[:, :-1] & draft.valid[:, 1:]
        total += float((tv * emitted).sum())
    assert state.report.bias.altered == pytest.approx(total / 40, rel=1e-4)


def test_a_window_behind_the_end_keeps_the_targets_distribution():
    """For every tau, the next draft has the distribution that it reports."""
    rows, head = 5_000, LinearHead.of(2, 3)
    at = Round(PhiloxSource.seeded(5, rows), torch.zeros(rows, dtype=torch.int64), [0] * rows)
    small, distribution = (DenoisingChain(torch.full((rows, n, 2), c), head) for n, c in ((2, 0.0), (3, 1.5)))
    held = small.with_draws(small.draw(DraftNoise(at, shared=False).chain(1, 2)))
    units = held.units(held.draws)
    valid = torch.ones(rows, 3, dtype=torch.bool)
    root = torch.zeros(rows, 2)
    draft = Draft.chain(units, held).rooted(root, torch.full((rows,), 5))
    verdict = Tempered(TemperedOptions(tau=3.0)).accept(draft, Scores(distribution, valid), at)
    behind = verdict.length == 0
    drawn = distribution.with_draws(verdict.drawn)
    noise = torch.cat([drawn.states[:, 1, :1], (drawn.states[:, 1, 1:] - drawn.means[:, 1]) / 0.5], 1)
    assert 0.2 < behind.float().mean() < 0.9
    assert white_p_value(noise[behind].flatten(1).double()) > LEVEL
    assert_near(drawn.means[:, 1], head.carried * drawn.states[:, 1, :-1] + head.added * 1.5)


@pytest.mark.parametrize("rule", [Rejection(), Tempered(TemperedOptions(tau=1.0))])
def test_drafts_without_a_distribution_do_no_harm(rule):
    """Drafts of a broken model: tokens and distributions of NaN."""
    target, small = near_by()
    output = Decoder(target, DegenerateDrafts(DraftModel(small)), rule, k=3).generate(1_000, 6, seed=1)
    tokens = torch.stack(output.units)
    assert white_p_value(whitened(tokens.flatten(1), *target.joint(6))) > LEVEL
    assert not output.report.faults and output.report.acceptance_length > 1.1
    if isinstance(rule, Tempered):
        assert output.report.bias.tv < 0.004


def test_chains_that_cannot_be_tested_are_refused():
    target, small = near_by()
    wide = LinearHead.of(2, 3)
    wide.sigmas = torch.tensor([0.5, 0.5, 0.6])
    decoder = Decoder(target, DraftModel(ChainTarget(small.grid, wide)), Tempered(), k=2)
    with pytest.raises(ValueError, match=r"step 2 of 3 \(the last one\): the draft's sigma is 0.6, the target's 0.5"):
        decoder.generate(2, 6)
    with pytest.raises(ValueError, match="has 2 denoising steps, the target's 3: chains of different lengths"):
        Decoder(target, DraftModel(ChainTarget(small.grid, LinearHead.of(2, 2))), Tempered(), k=2).generate(2, 6)
    with pytest.raises(ValueError, match="and a GaussianMixture has none"):
        Decoder(MixtureTarget.random(2, seed=0), Jacobi(LeftDistribution()), Tempered(), k=2).generate(2, 6)
    mixture = ContinuousTarget(tiny(head="gaussian-mixture"))
    with pytest.raises(ValueError, match="the rule 'tempered' tests the last step of a denoising head, and this model"):
        Decoder(mixture, ContinuousJacobi(), Tempered())


def test_by_name(pipe):
    released = ContinuousTextToImagePipeline(**pipe.components).use("cspd", model=pipe.transformer, k=3)
    assert released.decoder().rule.tau == 42**2
    made = ContinuousTextToImagePipeline(**pipe.components).use("cspd", model=pipe.transformer, k=3, tau=2.0)
    made.set_progress_bar_config(disable=True)
    decoder = made.decoder()
    assert decoder.rule.options.tau == 2 and decoder.drafter.options.prefill == 0.05
    report = made("red heart", seed=1).report
    assert report.method == "cspd" and report.exactness == "lossy" and report.acceptance_rate > 0.95
    assert report.bias.altered < 1e-3, "it drafts for itself, as it would draw"


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_the_first_tokens_are_the_targets_alone(share):
    """`prefill` is a share of the picture's tokens, not of the call's."""
    example = draft_model()
    drafter = ContinuousDraftModel(DraftModelOptions(model=example.options.model, prefill=share))
    decoder, first = Decoder(example.target, drafter, Tempered(), k=3), math.ceil(share * example.target.context)
    state = decoder.start(captions([1, 2, 3]), 20, seed=1)
    while not state.finished:
        before = list(state.host.emitted)
        pending = decoder.speculate(state)
        assert (pending.draft.nodes > 1) == (min(before) >= first and min(before) < 19)
        decoder.settle(state, pending)
        state.sync()
    report = state.report
    assert not report.faults and (report.accepted > 0) == (share < 1)
