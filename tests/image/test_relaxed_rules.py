"""The relaxed rules: exact where a group is one code, lossy as their closed form says elsewhere (see `test_bias`)."""

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.distributions import Categorical, Mixed
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.initialisations import LeftUnit
from mmspec.core.drafters.jacobi import Jacobi
from mmspec.core.noise import Round
from mmspec.core.philox import PhiloxSource
from mmspec.core.report import Bias
from mmspec.core.rules import Rejection
from mmspec.core.types import Draft, Scores
from mmspec.core.warp import Warp
from mmspec.kits.pictures.conditions import Condition
from mmspec.testing.statistics import joint_p_value
from mmspec.testing.toys.degenerate import DegenerateDrafts
from mmspec_image.drafters.jacobi import ImageJacobi
from mmspec_image.rules.grouped import Grouped, GroupedOptions
from mmspec_image.rules.relax import Codes, nearest
from mmspec_image.rules.relaxed import Relaxed, RelaxedOptions
from mmspec_image.targets.llamagen import LlamaGenTarget
from tests.support.examples import written
from tests.support.relaxed import nearest_codes, nearest_groups, outcome, ranked_groups
from tests.support.toys.picture import PictureTarget

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
    assert made[0].report.bias is None and made[1].report.bias == Bias(0.0, 0.0, 0.0)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", ["size 1", "k 0", "lam 1"])
@pytest.mark.parametrize("drafter", [lambda: DraftModel(PictureTarget.random(3, 6, seed=4)), ImageJacobi])
def test_drafts_without_a_distribution_are_measured_and_do_no_harm(name, drafter):
    target = PictureTarget.random(3, 6, seed=3)
    made = [
        Decoder(target, DegenerateDrafts(drafter()), rule, k=4).generate(torch.ones(200).long(), 12, seed=2)
        for rule in (Rejection(), STRICT[name](), Relaxed(RelaxedOptions(k=3, delta=0.3)))
    ]
    assert all(torch.equal(a, b) for a, b in zip(made[0].units, made[1].units, strict=True))
    assert made[1].report.bias == Bias(0.0, 0.0, 0.0) and 0 < made[2].report.bias.tv < 1


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


def distributions(vocab=6):
    g = torch.Generator().manual_seed(11)
    return [torch.softmax(torch.randn(vocab, generator=g) * 1.5, -1) for _ in range(2)]


GROUPED = GroupedOptions(size=3, difference=0.5, distance=20.0)
RULES = {
    "grouped": lambda: Grouped(GROUPED),
    "lantern": lambda: Relaxed(RelaxedOptions(k=3, delta=0.3)),
    "lantern, the paper's residual": lambda: Relaxed(RelaxedOptions(k=3, delta=0.3, residual="paper")),
    "lantern, the released residual": lambda: Relaxed(RelaxedOptions(k=2, delta=0.3, residual="released")),
    "lantern++": lambda: Relaxed(RelaxedOptions(k=3, lam=3.0)),
}


def expected(rule, p, q):
    """The distribution of what one node emits, by the slow oracle."""
    options, book = rule.options, Book(len(p)).codebook
    if isinstance(rule, Grouped):
        groups = ranked_groups(p, options.size, options.difference, options.distance, book)
        return outcome(p, q, groups, by_group=True)
    groups = nearest_groups(p, options.k, options.delta, options.lam, book)
    near = nearest_codes(book, options.k + 1) if options.residual == "released" else None
    return outcome(p, q, groups, by_group=False, paper=options.residual == "paper", near=near)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("point", [False, True])
def test_the_output_follows_the_closed_form(name, point):
    p, q = distributions()
    rows, vocab, rule = 50_000, 6, RULES[name]()
    rule.bind(Book(vocab))
    distribution = Categorical(q.expand(rows, 1, vocab))
    x = torch.multinomial(q, rows, replacement=True, generator=torch.Generator().manual_seed(1))[:, None]
    if point:
        x = torch.full_like(x, int(q.argmax()))
        q = torch.nn.functional.one_hot(x[0, 0], vocab).float()
        distribution = Mixed(distribution, torch.zeros(rows, 1, dtype=torch.bool), x)
    draft = Draft.chain(x, distribution).rooted(torch.zeros(rows, dtype=torch.int64), torch.full((rows,), 5))
    scores = Scores(Categorical(p.expand(rows, 2, vocab)), torch.ones(rows, 2, dtype=torch.bool))
    zero = torch.zeros(rows, dtype=torch.int64)
    verdict = rule.accept(draft, scores, Round(PhiloxSource.seeded(3, rows), zero, [0] * rows))
    first = torch.where(verdict.length > 0, x[:, 0], verdict.unit)
    assert joint_p_value(first[:, None], expected(rule, p, q).distribution) > 1e-4
    assert joint_p_value(first[:, None], p) < 1e-4, "the bias must be seen, or this test is blind"


@pytest.mark.parametrize(
    ("size", "difference", "distance"), [(1, 1.0, 1e9), (2, 1.0, 1e9), (3, 0.1, 1e9), (6, 0.3, 8.0), (14, 0.15, 1e9)]
)
def test_groups_are_ranked_neighbours_that_are_near(size, difference, distance):
    p, book = torch.softmax(torch.randn(9, generator=torch.Generator().manual_seed(2)), -1), Book(9)
    rule = Grouped(GroupedOptions(size=size, difference=difference, distance=distance))
    rule.bind(book)
    group = rule.groups(p.expand(2, 4, -1))(torch.arange(9).expand(2, 4, -1))
    assert group.ids.shape == (2, 4, 9, size) and torch.equal(group.ids[..., 0], torch.arange(9).expand(2, 4, -1))
    found = [set(ids[inside].tolist()) for ids, inside in zip(group.ids[1, 3], group.inside[1, 3], strict=True)]
    assert found == ranked_groups(p, size, difference, distance, book.codebook)


@pytest.mark.parametrize(("k", "delta", "lam"), [(0, 0.5, None), (3, 0.3, None), (8, 1.0, None), (5, 0.1, 2.5)])
def test_groups_are_the_nearest_codes_within_the_bound(k, delta, lam):
    p, book = torch.softmax(torch.randn(9, generator=torch.Generator().manual_seed(2)), -1), Book(9)
    rule = Relaxed(RelaxedOptions(k=k, delta=delta, lam=lam))
    rule.bind(book)
    group = rule.groups(p.expand(1, 1, -1))(torch.arange(9).expand(1, 1, -1))
    found = [set(ids[inside].tolist()) for ids, inside in zip(group.ids[0, 0], group.inside[0, 0], strict=True)]
    assert found == nearest_groups(p, k, delta, lam, book.codebook)


class Words:
    """A target of twelve ids, of which five are codes; their embeddings lie otherwise than the codebook's entries."""

    vocab, code_ids = 12, torch.tensor([9, 3, 4, 7, 10])
    codebook = torch.tensor([[0.0], [1.0], [2.1], [3.3], [9.0]])
    code_embeddings = torch.tensor([[0.0, 5.0], [9.0, 0.0], [0.1, 5.0], [9.1, 0.0], [0.0, 5.2]])


def test_words_are_like_no_code():
    p, every = torch.full((1, 1, 12), 1 / 12), torch.arange(12).expand(1, 1, -1)
    near = Relaxed(RelaxedOptions(k=2, delta=1.0))
    near.bind(Words())
    group = near.groups(p)(every)
    found = [set(ids[inside].tolist()) for ids, inside in zip(group.ids[0, 0], group.inside[0, 0], strict=True)]
    wanted = {9: {9, 3, 4}, 3: {3, 9, 4}, 4: {4, 3, 7}, 7: {7, 4, 3}, 10: {10, 7, 4}}
    assert found == [wanted.get(unit, {unit}) for unit in range(12)]
    ranked = Grouped(GroupedOptions(size=24, difference=1.0, distance=0.5))
    ranked.bind(Words())
    group = ranked.groups(p)(every)
    found = [set(ids[inside].tolist()) for ids, inside in zip(group.ids[0, 0], group.inside[0, 0], strict=True)]
    alike = {9: {9, 4, 10}, 3: {3, 7}, 4: {9, 4, 10}, 7: {3, 7}, 10: {9, 4, 10}}
    assert found == [alike.get(unit, {unit}) for unit in range(12)], "by the embeddings"


@pytest.mark.parametrize("name", ["emu3", "chameleon"])
def test_a_language_models_codes_are_its_vqs(name):
    target = getattr(written, name)().target
    entries, embedded = Codes.of(target), Codes.of(target, embeddings=True)
    mapping, inner = target.model.model.vocabulary_mapping.img2bpe, target.model.model
    for code, unit in mapping.items():
        row = entries.rows[unit]
        assert torch.equal(entries.vectors[row], inner.vqmodel.quantize.embedding.weight[code])
        assert torch.equal(embedded.vectors[row], target.model.get_input_embeddings().weight[unit])
    assert len(entries.ids) == len(mapping) == int((entries.rows >= 0).sum())


def test_nearest_codes_leave_the_code_itself_out():
    book = torch.randn(1500, 4, generator=torch.Generator().manual_seed(0))  # more than are looked at together
    found = nearest(book, 3)
    for code in (0, 700, 1023, 1024, 1499):
        apart = (book - book[code]).square().sum(-1)
        assert found[code].tolist() == [y for y in apart.argsort().tolist() if y != code][:3]


def test_independent_redraw_is_exact_and_coupling_accepts_more(by_class):
    lengths = {}
    for independent in (False, True):
        decoder = Decoder(LlamaGenTarget(by_class), Jacobi(LeftUnit(), independent), Rejection(), k=8)
        output = decoder.generate(Condition(torch.arange(200) % 5), 16, seed=1, warp=WARP)
        lengths[independent] = output.report.acceptance_length
    assert lengths[False] > lengths[True] > 1, lengths


def test_the_released_residual_is_at_most_as_far_away_as_is_measured() -> None:
    """On average over the drafted unit; its excess acceptance is exact."""
    p, q = (each.double() for each in distributions())
    rule = RULES["lantern, the released residual"]()
    rule.bind(Book(6))
    one, other = p.view(1, 1, -1), q.view(1, 1, -1)
    found = [rule.bias(one, other, torch.tensor([[[x]]]), rule.groups(one)) for x in range(6)]
    tv, extra = (sum(float(share * each[part]) for share, each in zip(q, found, strict=True)) for part in (0, 1))
    closed = expected(rule, p, q)
    assert closed.excess_acceptance == pytest.approx(extra) and closed.excess_acceptance < closed.tv <= tv < 1
