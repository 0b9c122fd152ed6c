"""`sjd-pac`: drafts worked out by hand, the exact joint of its rule, and plain's own codes under shared noise."""

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.distributions import Categorical, Mixed
from mmspec.core.noise import Round
from mmspec.core.philox import PhiloxSource
from mmspec.core.rules import Match, Rejection
from mmspec.core.types import Draft, Scores
from mmspec.core.warp import Warp
from mmspec.kits.pictures.conditions import Condition
from mmspec.testing.statistics import joint_p_value
from mmspec_image.drafters.jacobi import ImageJacobi, JacobiOptions
from mmspec_image.drafters.sjd_pac import SjdPac, SjdPacOptions
from mmspec_image.rules.recursive_coupling import RecursiveCoupling
from mmspec_image.targets.llamagen import LlamaGenTarget
from tests.support.laws import assert_follows
from tests.support.toys.picture import KIND, PictureTarget, drawn, joint

VOCAB, LENGTH = 3, 5
TARGET = PictureTarget.random(2, VOCAB, seed=3)
GUIDED = Warp(guidance=2.0)


def pac(target, rule, k, **options):
    return Decoder(target, SjdPac(SjdPacOptions(**options)), rule, k=k)


def counting():
    """Four codes in one row. After code c come c + 1, c, c + 2 and c + 3 (modulo 4), in the order of their chances.

    These are 1, 2e-9, 4e-18 and 9e-27, so that no noise changes what is drawn, nor the order of siblings.
    """
    table = torch.zeros(3, 5, 5, 4)
    for code in range(4):
        for rank, following in enumerate((code + 1, code, code + 2, code + 3)):
            table[:, code, :, following % 4] = -20.0 * rank
    table[:, 4, :, 1:] = -60.0  # the first code is 0
    return PictureTarget(1000, table)


def proposal(decoder, state):
    """Drafted units and the parents of a round, and where a node is valid; then the round itself."""
    pending = decoder.speculate(state)
    draft = pending.draft
    decoder.settle(state, pending)
    state.sync()
    return draft.drafted[0].tolist(), (draft.index.parent[0, 1:] - 1).tolist(), draft.valid[0, 1:].tolist()


@pytest.mark.parametrize("rule", [Match, RecursiveCoupling])
def test_drafts_of_three_rounds_by_hand(rule):
    decoder = pac(counting(), rule(), 3, init="left", siblings=3)
    state = decoder.start(torch.tensor([KIND]), 40, seed=1)
    # The root is 0 and nothing was drawn yet: a chain of the left code.
    assert proposal(decoder, state) == ([0, 0, 0], [-1, 0, 1], [True] * 3)
    assert state.output()[0].tolist() == [0, 1]
    # The nodes 1 … 3 held a 0, and drew 1 each; from their distribution siblings are 0 and 2. Place 0 has them below
    # the root, place 1 below each of the three units of place 0.
    units, parents, valid = proposal(decoder, state)
    assert units == [*(1, 1, 1), *(0, 2), *(0, 2), *(1, 0, 2), *(1, 0, 2)] and all(valid)
    assert parents == [*(-1, 0, 1), *(-1, -1), *(0, 0), *(3, 3, 3), *(4, 4, 4)]
    # Code 1 is followed by 2, a sibling; the 3 behind it was not drafted.
    assert state.output()[0].tolist() == [0, 1, 2, 3]
    # Slot 0 is what the first child (1) of that sibling drew, a 2; slot 1 what the window's node at depth 3 (1) drew, a
    # 2; slot 2 is new, and a copy of its left code.
    units, parents, valid = proposal(decoder, state)
    assert units == [*(2, 2, 2), *(1, 3), *(1, 3), *(2, 1, 3), *(2, 1, 3)] and all(valid)
    assert parents == [*(-1, 0, 1), *(-1, -1), *(0, 0), *(3, 3, 3), *(4, 4, 4)]
    assert state.output()[0].tolist() == [0, 1, 2, 3, 0]


def test_a_filling_has_no_siblings():
    decoder = pac(counting(), Match(), 1, init="left", siblings=3, depth=1)
    state = decoder.start(torch.tensor([KIND]), 40, seed=1)
    assert proposal(decoder, state) == ([0], [-1], [True])
    assert proposal(decoder, state) == ([1, 0, 2], [-1, -1, -1], [True] * 3)  # and 2 is accepted, 3 drawn
    assert proposal(decoder, state)[2] == [True, False, False]  # the window's only slot is new


def halved(target):
    """The target with a table in bfloat16."""
    return PictureTarget(target.grid, target.table.bfloat16())


@pytest.mark.parametrize(
    ("rows", "dtype", "k", "options", "warp"),
    [
        (60_000, "float32", 3, {"siblings": 2}, GUIDED),
        *(
            pytest.param(200_000, dtype, k, options, warp, marks=pytest.mark.slow)
            for dtype in ("float32", "bfloat16")
            for k, options, warp in (
                (3, {}, GUIDED),
                (1, {"siblings": 2, "init": "random"}, GUIDED),
                (6, {"depth": 1, "init": "left"}, Warp.sampling(top_k=2, guidance=2.0)),
                (4, {"siblings": 2, "depth": 3}, Warp.sampling(top_p=0.8)),
            )
        ),
    ],
)
def test_the_joint_is_kept(rows, dtype, k, options, warp):
    target = TARGET if dtype == "float32" else halved(TARGET)
    oracle = PictureTarget(target.grid, target.table.float())
    decoder = pac(target, RecursiveCoupling(), k, **options)
    expected = joint(oracle, LENGTH, warp)
    p = assert_follows(lambda seed, n: drawn(decoder, n, LENGTH, seed=seed, warp=warp), expected, rows)
    print(f"p = {p:.4f}")


@pytest.mark.slow
def test_a_sibling_that_reports_another_distribution_is_seen(monkeypatch):
    """What the joints rest on: siblings that were drawn without replacement, and say that they were drawn with it."""
    monkeypatch.setattr(
        "mmspec_image.drafters.sjd_pac.distribution_of", lambda q, parent, rank, children: q.take(parent)
    )
    decoder = pac(TARGET, RecursiveCoupling(), 3)
    found = drawn(decoder, 200_000, LENGTH, seed=1, warp=GUIDED)
    assert joint_p_value(found, joint(TARGET, LENGTH, GUIDED)) < 1e-6


@pytest.mark.parametrize("options", [{}, {"siblings": 2, "depth": 3}, {"siblings": 1}])
def test_shared_noise_gives_the_plain_codes(options):
    for k, warp in ((1, GUIDED), (3, Warp.sampling(top_k=2, guidance=2.0)), (9, Warp.sampling(top_p=0.8))):
        fast = drawn(pac(TARGET, Match(), k, **options), 200, 9, seed=5, warp=warp)
        assert torch.equal(fast, drawn(Decoder(TARGET), 200, 9, seed=5, warp=warp)), k


def test_every_node_has_a_draw_from_the_target():
    """A root with two drawn children and one grandchild: the draws at all nodes, and the walk that follows them."""
    rows = 40_000
    g = torch.Generator().manual_seed(7)
    p, q = (torch.randn(4, VOCAB, generator=g).mul(1.5).softmax(-1) for _ in range(2))
    first = torch.multinomial(q[0], rows, replacement=True, generator=g)
    left = q[0].expand(rows, -1).scatter(1, first[:, None], 0.0)
    left = left / left.sum(-1, keepdim=True)
    second = torch.multinomial(left, 1, generator=g)[:, 0]
    below = torch.multinomial(q[1], rows, replacement=True, generator=g)
    units = torch.stack([first, second, below], 1)
    distribution = Categorical(torch.stack([q[0].expand(rows, -1), left, q[1].expand(rows, -1)], 1))
    draft = Draft.tree(units, (-1, -1, 1), distribution).rooted(torch.zeros_like(first), torch.full_like(first, 9))
    scores = Scores(Categorical(p.expand(rows, 4, VOCAB)), torch.ones(rows, 4, dtype=torch.bool))
    verdict = RecursiveCoupling().accept(draft, scores, Round(PhiloxSource.seeded(3, rows), first * 0, [0] * rows))
    for node in range(4):
        assert joint_p_value(verdict.drawn[:, node, None], p[node]) > 1e-4, node
    hit = (verdict.drawn[:, :1] == units[:, :2]).any(1)
    deeper = (verdict.drawn[:, 0] == second) & (verdict.drawn[:, 2] == below)
    assert torch.equal(verdict.length, hit.long() + deeper.long())
    # Two siblings without replacement are refused with the chance that recursive rejection says.
    rest = (p[0] - q[0]).clamp(min=0)
    both = 0.0
    for x in range(VOCAB):
        other = q[0].clone()
        other[x] = 0
        other /= other.sum()
        both += float(q[0, x] * (1 - p[0, x] / q[0, x]).clamp(min=0) * (rest / rest.sum() - other).clamp(min=0).sum())
    assert abs((~hit).float().mean() - both) < 4 * (both / rows) ** 0.5


def test_the_models_codes_are_plains(by_class):
    given, warp = Condition(torch.arange(6) % 5), Warp.sampling(temperature=0.9, top_k=12, guidance=2.0)
    target = LlamaGenTarget(by_class)
    plain = Decoder(target).generate(given, 16, seed=2, warp=warp).units
    decoder = pac(target, Match(), 7)
    made = decoder.generate(given, 16, seed=2, warp=warp)
    assert all(torch.equal(a, b) for a, b in zip(made.units, plain, strict=True))
    window = Decoder(target, ImageJacobi(JacobiOptions()), Match(), k=7).generate(given, 16, seed=2, warp=warp)
    assert made.report.acceptance_length > window.report.acceptance_length
    greedy = Warp(sample=False, guidance=2.0)  # no siblings without noise: a window
    a, b = (Decoder(target, d, k=7).generate(given, 16, warp=greedy).units for d in (None, SjdPac()))
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("rule", [Rejection, RecursiveCoupling])
def test_drafts_without_replacement_are_mixed_with_fillings(rule):
    """A tree is refused by the rule of chains, and has point masses where slots are new."""
    if rule is Rejection:
        with pytest.raises(ValueError, match="chain"):
            pac(TARGET, rule(), 3)
        return
    decoder = pac(TARGET, rule(), 3, siblings=2)
    state = decoder.start(torch.full((50,), KIND), 20, warp=GUIDED)
    for _ in range(3):
        pending = decoder.speculate(state)
        decoder.settle(state, pending)
        state.sync()
    distribution = pending.draft.distribution
    assert isinstance(distribution, Mixed) and not distribution.random.all()
    valid = pending.draft.valid[:, 1:]
    assert (valid[:, 3:] & distribution.random[:, 3:]).any() and not valid[:, 3:].all()
