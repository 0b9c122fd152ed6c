"""The relaxed rules: exact where a group is one code, lossy as their closed form says elsewhere."""

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.drafters.initialisations import LeftUnit
from mmspec.core.drafters.jacobi import Jacobi
from mmspec.core.laws import Categorical, Mixed
from mmspec.core.noise import Round
from mmspec.core.philox import PhiloxSource
from mmspec.core.rules import Rejection
from mmspec.core.types import Draft, Scores
from mmspec.core.warp import Warp
from mmspec.testing.statistics import joint_p_value
from mmspec_image.drafters.jacobi import ImageJacobi
from mmspec_image.rules.grouped import Grouped, GroupedOptions
from mmspec_image.rules.relaxed import Relaxed, RelaxedOptions, nearest
from mmspec_image.targets.llamagen import Condition, LlamaGenTarget

STRICT = {
    "size 1": lambda: Grouped(GroupedOptions(size=1)),
    "difference 0": lambda: Grouped(GroupedOptions(difference=0.0)),
    "distance 0": lambda: Grouped(GroupedOptions(distance=0.0)),
    "k 0": lambda: Relaxed(RelaxedOptions(k=0)),
    "delta 0": lambda: Relaxed(RelaxedOptions(delta=0.0)),
    "lam 1": lambda: Relaxed(RelaxedOptions(lam=1.0)),
    "delta 0, the paper's residual": lambda: Relaxed(RelaxedOptions(delta=0.0, residual="paper")),
}
WARP = Warp.sampling(temperature=0.9, top_k=12, guidance=2.0)


@pytest.mark.parametrize("name", STRICT)
def test_the_strict_end_is_rejection_bit_for_bit(by_class, name):
    given = Condition(torch.arange(40) % 5)
    made = [
        Decoder(LlamaGenTarget(by_class), ImageJacobi(), rule, k=7).generate(given, 16, seed=2, warp=WARP)
        for rule in (Rejection(), STRICT[name]())
    ]
    assert all(torch.equal(a, b) for a, b in zip(made[0].units, made[1].units, strict=True))
    assert made[0].report.rounds == made[1].report.rounds and made[1].report.exactness == "lossy"


def test_relaxing_accepts_more(by_class):
    given, lengths = Condition(torch.arange(40) % 5), []
    for rule in (Rejection(), Relaxed(RelaxedOptions(k=5, delta=0.3)), Grouped(GroupedOptions(distance=1e9))):
        decoder = Decoder(LlamaGenTarget(by_class), ImageJacobi(), rule, k=7)
        lengths.append(decoder.generate(given, 16, seed=2, warp=WARP).report.acceptance_length)
    assert lengths[1] > 1.05 * lengths[0] and lengths[2] > 1.05 * lengths[0], lengths


class Book:
    """A target as far as the rules look at it."""

    def __init__(self, vocab):
        self.codebook = torch.randn(vocab, 3, generator=torch.Generator().manual_seed(5))


def laws(vocab=6):
    g = torch.Generator().manual_seed(11)
    return [torch.softmax(torch.randn(vocab, generator=g) * 1.5, -1) for _ in range(2)]


def accept_chances(rule, p, q):
    """a(x) of every x, by the rule's own group: min(1, P(G) / Q)."""
    vocab = len(p)
    x = torch.arange(vocab)[None]
    probs, draft = p.expand(1, vocab, -1), q.expand(1, vocab, -1)
    group = rule.group(probs, x)
    return (group.mass(probs) / rule.against(group, draft, x)).clamp(max=1)[0], group


RULES = {
    "grouped": lambda: Grouped(GroupedOptions(size=3, difference=0.5, distance=20.0)),
    "lantern": lambda: Relaxed(RelaxedOptions(k=3, delta=0.3)),
    "lantern++": lambda: Relaxed(RelaxedOptions(k=3, lam=3.0)),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("point", [False, True])
def test_the_output_follows_the_closed_form(name, point):
    """Draft x ~ q (or a point mass): out(y) = q(y) a(y) + (1 - Σ q a) r(y), r = norm((p - q)+)."""
    p, q = laws()
    rows, vocab, rule = 200_000, 6, RULES[name]()
    rule.bind(Book(vocab))
    law = Categorical(q.expand(rows, 1, vocab))
    x = torch.multinomial(q, rows, replacement=True, generator=torch.Generator().manual_seed(1))[:, None]
    if point:
        x = torch.full_like(x, int(q.argmax()))
        q = torch.nn.functional.one_hot(x[0, 0], vocab).float()
        law = Mixed(law, torch.zeros(rows, 1, dtype=torch.bool), x)
    draft = Draft.chain(x, law).rooted(torch.zeros(rows, dtype=torch.int64), torch.full((rows,), 5))
    scores = Scores(Categorical(p.expand(rows, 2, vocab)), torch.ones(rows, 2, dtype=torch.bool))
    zero = torch.zeros(rows, dtype=torch.int64)
    verdict = rule.accept(draft, scores, Round(PhiloxSource.seeded(3, rows), zero, [0] * rows))
    first = torch.where(verdict.length > 0, x[:, 0], verdict.unit)
    chance, _ = accept_chances(rule, p, q)
    kept = q * chance
    left = (p - q).clamp(min=0)
    expected = kept + (1 - kept.sum()) * left / left.sum()
    assert joint_p_value(first[:, None], expected) > 1e-4
    assert joint_p_value(first[:, None], p) < 1e-4, "the bias must be seen, or this test is blind"


def test_total_variation_is_the_extra_acceptance():
    """LANTERN with the plain residual: TV(out, p) = α_relaxed - α_exact, to rounding."""
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        p, q = (torch.softmax(torch.randn(12, generator=g).double() * 1.5, -1) for _ in range(2))
        rule = Relaxed(RelaxedOptions(k=4, delta=0.3))
        rule.bind(Book(12))
        chance, _ = accept_chances(rule, p, q)
        exact = (p / q).clamp(max=1)
        left = (p - q).clamp(min=0)
        out = q * chance + (1 - (q * chance).sum()) * left / left.sum()
        bias = (out - p).abs().sum() / 2
        assert float((bias - (q * (chance - exact)).sum()).abs()) < 1e-12


def test_groups_hold_the_code_itself_first_and_only_what_is_near():
    p, _ = laws()
    x = torch.arange(6)[None]
    probs = p.expand(1, 6, -1)
    rule = Grouped(GroupedOptions(size=3, difference=0.05, distance=1e9))
    rule.bind(Book(6))
    group = rule.group(probs, x)
    assert torch.equal(group.ids[..., 0], x) and group.inside[..., 0].all()
    near = (probs.gather(-1, group.ids) - p[x][..., None]).abs() < 0.05
    assert (near | ~group.inside).all()
    ranked = nearest(Book(6).codebook, 2)
    assert ranked.shape == (6, 2) and not (ranked == torch.arange(6)[:, None]).any()


def test_independent_redraw_is_exact_and_coupling_accepts_more(by_class):
    lengths = {}
    for independent in (False, True):
        decoder = Decoder(LlamaGenTarget(by_class), Jacobi(LeftUnit(), independent), Rejection(), k=8)
        output = decoder.generate(Condition(torch.arange(200) % 5), 16, seed=1, warp=WARP)
        lengths[independent] = output.report.acceptance_length
    assert lengths[False] > lengths[True] > 1, lengths
