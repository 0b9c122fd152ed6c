"""The measured bias of the relaxed rules: its identities, and whole runs against a slow recount.

That units really have the distribution that the bias is computed from is a check of `test_image_mutants`.
"""

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.distributions import Mixed, dense
from mmspec.core.warp import Warp
from mmspec_image.drafters.jacobi import ImageJacobi
from mmspec_image.rules import relax, relaxed
from mmspec_image.rules.grouped import Grouped, GroupedOptions
from mmspec_image.rules.relaxed import Relaxed, RelaxedOptions
from tests.support.relaxed import nearest_groups, outcome, ranked_groups
from tests.support.toys.picture import PictureTarget

TARGET, LENGTH = PictureTarget.random(3, 6, seed=3, sharpness=1.0), 8
RULES = {
    "grouped 2": lambda **more: Grouped(GroupedOptions(size=2, difference=1.0, distance=1e9, **more)),
    "grouped": lambda **more: Grouped(GroupedOptions(size=4, difference=0.3, distance=12.0, **more)),
    "lantern": lambda **more: Relaxed(RelaxedOptions(k=4, delta=0.3, **more)),
    "lantern, the paper's residual": lambda **more: Relaxed(RelaxedOptions(k=4, delta=0.3, residual="paper", **more)),
    "lantern++": lambda **more: Relaxed(RelaxedOptions(k=3, lam=3.0, **more)),
    "lantern++, the paper's residual": lambda **more: Relaxed(RelaxedOptions(k=3, lam=3.0, residual="paper", **more)),
}


def bound(name, **more):
    rule = RULES[name](**more)
    rule.bind(TARGET)
    return rule


def expected(rule, p, q):
    options, book = rule.options, TARGET.codebook
    if isinstance(rule, Grouped):
        groups = ranked_groups(p, options.size, options.difference, options.distance, book)
        return outcome(p, q, groups, by_group=True)
    groups = nearest_groups(p, options.k, options.delta, options.lam, book)
    return outcome(p, q, groups, by_group=False, paper=options.residual == "paper")


def some_distributions(count=60, vocab=6):
    """Random p and q in float64; of q, some are one-hot; of both, some lack units, as after top-k."""
    g = torch.Generator().manual_seed(0)
    p, q = (torch.softmax(torch.randn(count, vocab, generator=g).double() * 2, -1) for _ in range(2))
    for distribution in (p, q):
        cut = distribution[: count // 3]
        cut[cut < cut.topk(3, -1).values[:, -1:]] = 0.0
    q[::4] = torch.eye(vocab).double()[q[::4].argmax(-1)]
    return p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)


@pytest.mark.parametrize("name", RULES)
def test_the_identities_hold_to_rounding(name):
    """TV by the rule equals ½‖out - p‖₁ by the closed form, which sums to 1; for LANTERN both are the extra chance."""
    p, q = some_distributions()
    rule, x = bound(name), q.argmax(-1)
    tv, excess_acceptance = rule.bias(p[None], q[None], x[None, :, None], rule.groups(p[None]))
    for node in range(len(p)):
        slow = expected(rule, p[node], q[node])
        assert abs(float(slow.distribution.sum()) - 1) < 1e-12 and float(slow.distribution.min()) >= 0
        assert abs(float(tv[0, node]) - slow.tv) < 1e-12
        assert abs(float(excess_acceptance[0, node]) - slow.excess_acceptance) < 1e-12
        if isinstance(rule, Relaxed):
            assert abs(slow.tv - slow.excess_acceptance) < 1e-12
            one_hot = float(q[node].max()) == 1.0
            assert not one_hot or rule.options.lam is not None or slow.tv <= rule.options.delta + 1e-12
    if name == "grouped":
        assert float((tv - excess_acceptance).abs().max()) > 1e-3, (
            "here the extra chance is not the bias: the test must see it"
        )


@pytest.mark.parametrize("name", ["grouped", "lantern"])
def test_how_much_is_looked_at_together_changes_nothing(name, monkeypatch):
    p, q = some_distributions()
    q = torch.where(q >= q.topk(3, -1).values[:, -1:], q, 0.0)
    q = q / q.sum(-1, keepdim=True)
    rule, x = bound(name), q.argmax(-1)[None, :, None]
    whole = rule.bias(p[None], q[None], x, rule.groups(p[None]))
    monkeypatch.setattr(relax, "AT_ONCE", 1)
    apart = rule.bias(p[None], q[None], x, rule.groups(p[None]))
    monkeypatch.setattr(relax, "WIDEST", 3)  # the likeliest three units of q are all that it has
    few = rule.bias(p[None], q[None], x, rule.groups(p[None]))
    for one, other, third in zip(whole, apart, few, strict=True):
        assert float((one - other).abs().max()) < 1e-12 and float((one - third).abs().max()) < 1e-12


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("end", [None, 2])
def test_a_run_reports_what_a_recount_finds(name, end):
    """Windows with drawn and filled-in slots, rows that end at different lengths, drafts that reach over the end."""
    decoder = Decoder(TARGET, ImageJacobi(), bound(name), k=4)
    state = decoder.start(torch.ones(12).long(), LENGTH, seed=1, ends=end, warp=Warp.sampling(top_k=5, guidance=2.0))
    tv = excess_acceptance = decided = points = cut = 0.0
    while not state.finished:
        pending = decoder.speculate(state)
        step = decoder.settle(state, pending)
        state.sync()
        p, distribution = step.scores.distribution.probs, step.draft.distribution
        q = dense(distribution, step.draft.drafted, TARGET.vocab) if step.draft.nodes > 1 else None
        for row, count in enumerate(step.count.tolist()):
            cut += count and count <= int(step.verdict.length[row])
            for node in range(count):
                if node + 1 < step.draft.nodes and step.draft.valid[row, node + 1]:
                    slow = expected(decoder.rule, p[row, node], q[row, node])
                    tv, excess_acceptance, decided = (
                        tv + slow.tv,
                        excess_acceptance + slow.excess_acceptance,
                        decided + 1,
                    )
                    points += not (isinstance(distribution, Mixed) and bool(distribution.random[row, node]))
    report = state.report
    assert 0 < points < decided and tv > 0.1 and (end is None or cut > 0)
    assert report.bias.altered == pytest.approx(tv / 12, rel=1e-5)
    assert report.bias.tv == pytest.approx(tv / report.emitted, rel=1e-5)
    assert report.bias.excess_acceptance == pytest.approx(excess_acceptance / decided, rel=1e-5)
    assert f"expected altered units per row {tv / 12:.1f}" in str(report)


@pytest.mark.parametrize("name", ["grouped", "lantern"])
def test_measuring_changes_no_unit_and_can_be_left_out(name):
    made = []
    for measure in (True, False):
        decoder = Decoder(TARGET, ImageJacobi(), bound(name, measure=measure), k=4)
        made.append(decoder.generate(torch.ones(50).long(), LENGTH, seed=4, warp=Warp(guidance=2.0)))
    assert all(torch.equal(a, b) for a, b in zip(made[0].units, made[1].units, strict=True))
    assert made[0].report.bias.altered > 0 and made[1].report.bias is None
    assert "altered" in str(made[0].report) and "altered" not in str(made[1].report)


def test_greedy_decoding_is_not_altered():
    decoder = Decoder(TARGET, ImageJacobi(), bound("lantern"), k=4)
    report = decoder.generate(torch.ones(20).long(), LENGTH, warp=Warp.sampling(temperature=0)).report
    assert report.bias.altered == 0 and report.bias.excess_acceptance == 0


def test_large_codebooks_are_estimated_from_the_drafted_codes(monkeypatch):
    """LANTERN on a vocabulary with too many neighbours: the same mean, from one code a node."""
    made = []
    for few in (relaxed.FEW, 0):
        monkeypatch.setattr(relaxed, "FEW", few)
        decoder = Decoder(TARGET, ImageJacobi(), bound("lantern"), k=4)
        made.append(decoder.generate(torch.ones(8_000).long(), LENGTH, seed=4, warp=Warp(guidance=2.0)).report.bias)
    assert made[0].altered != made[1].altered
    assert made[1].altered == pytest.approx(made[0].altered, rel=0.02)
    assert made[1].excess_acceptance == pytest.approx(made[0].excess_acceptance, rel=0.02)


def test_more_is_altered_where_more_is_accepted():
    altered = []
    for delta in (0.0, 0.1, 0.4):
        rule = Relaxed(RelaxedOptions(k=4, delta=delta))
        decoder = Decoder(TARGET, ImageJacobi(), rule, k=4)
        altered.append(decoder.generate(torch.ones(500).long(), LENGTH, seed=4).report.bias.altered)
    assert altered[0] == 0 < altered[1] < altered[2]
