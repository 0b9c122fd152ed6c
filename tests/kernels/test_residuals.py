"""The kernels of `rejection` and `recursive-rejection` decide as the rules do."""

from dataclasses import replace

import pytest
import torch

from mmspec.core.distributions import Categorical, Mixed, PointMass
from mmspec.core.kernels import fused
from mmspec.core.rules import Block, RecursiveRejection, Rejection
from tests.kernels.cases import Case, same

KERNELS = {Rejection: fused.coupled_and_walked, RecursiveRejection: fused.siblings_tried}


def drafted(given: Case, sharp: float = 1.0, points: bool = False) -> Case:
    """Drafts drawn from distributions near the target's: `sharp` 0 is the target's own."""
    rows, nodes, vocab = given.logits.shape
    generator = given.generator
    parent = given.draft.index.parent.expand(rows, -1)[:, 1:].cpu()
    logits = given.logits.float().cpu().gather(1, parent[..., None].expand(-1, -1, vocab))
    noise = torch.randn(rows, nodes - 1, vocab, generator=generator)
    q = torch.softmax(logits + sharp * noise, -1).to(given.logits.device)
    x = torch.multinomial(q.cpu().flatten(0, 1), 1, generator=generator).reshape(rows, nodes - 1).to(q.device)
    units = torch.cat([given.draft.units[:, :1], x], 1)
    distribution = Mixed(Categorical(q), x % 2 == 0, x) if points else Categorical(q)
    return replace(given, draft=replace(given.draft, units=units, distribution=distribution))


@pytest.fixture
def small_parts(device, monkeypatch):
    from mmspec.core.kernels import block, coupling, siblings

    monkeypatch.setattr(coupling, "SPAN", 128)
    monkeypatch.setattr(coupling, "BLOCK", 64)
    monkeypatch.setattr(block, "SPAN", 128)
    monkeypatch.setattr(block, "BLOCK", 64)
    monkeypatch.setattr(siblings, "BLOCK", 64)


@pytest.mark.parametrize(
    ("rule", "shape"),
    [(Rejection, "chain"), *((RecursiveRejection, shape) for shape in ("chain", "tree", "own trees"))],
)
def test_verdicts(reference, small_parts, make, rule, shape):
    lengths, refused = set(), 0
    for seed, (vocab, sharp) in enumerate([(5, 1.0), (37, 0.5), (300, 2.0), (300, 0.0)]):
        given = drafted(make(shape, seed, nodes=7, vocab=vocab), sharp)
        found = KERNELS[rule](given.draft, given.scores.distribution, given.round)
        assert found is not None
        with reference():
            same(found, rule().accept(given.draft, given.scores, given.round))
        lengths |= set(found.length.tolist())
        refused += int((found.length == 0).sum())
    assert max(lengths) > 1 and refused


@pytest.mark.parametrize("vocab", [5, 37, 300])
def test_block_verification(reference, small_parts, make, vocab):
    lengths = set()
    for sharp in (0.5, 2.0):
        given = drafted(make("chain", nodes=7, vocab=vocab, rows=5), sharp)
        assert fused.block_residuals(given.draft, given.scores.distribution, given.round) is not None
        found = Block().accept(given.draft, given.scores, given.round)
        with reference():
            assert fused.block_residuals(given.draft, given.scores.distribution, given.round) is None
            same(found, Block().accept(given.draft, given.scores, given.round))
        lengths |= set(found.length.tolist())
    assert len(lengths) > 2


def test_mixed_windows_couple_their_random_units_only(reference, small_parts, make):
    given = drafted(make("chain", vocab=37), 0.5, points=True)
    found = fused.coupled_and_walked(given.draft, given.scores.distribution, given.round)
    assert found is not None
    with reference():
        same(found, Rejection().accept(given.draft, given.scores, given.round))


@pytest.mark.parametrize("rule", KERNELS)
def test_a_residual_that_rounding_left_empty(reference, make, rule):
    """Equal distributions, and a coin that refuses: the draw is one from p."""
    given = drafted(make("chain", nodes=7), 0.0)
    lower = given.scores.distribution.probs.clone()
    q = given.draft.distribution.probs
    lower[:, :-1] = torch.minimum(lower[:, :-1], q)  # (p - q)+ is 0 everywhere
    x = given.draft.drafted[..., None]
    lower[:, :-1].scatter_(-1, x, lower[:, :-1].gather(-1, x) * 0.01)
    scores = replace(given.scores, distribution=Categorical(lower))
    found = KERNELS[rule](given.draft, scores.distribution, given.round)
    with reference():
        right = rule().accept(given.draft, scores, given.round)
    same(found, right)
    assert (found.length == 0).any()


@pytest.mark.parametrize("rule", KERNELS)
def test_cases_that_are_not_covered(make, rule):
    """Point masses, sparse proposals and drafts of the root alone are left to torch."""
    given = drafted(make("chain"))
    sparse = Categorical.top(given.draft.distribution, 3)
    for distribution in (None, PointMass(given.draft.drafted), sparse):
        draft = replace(given.draft, distribution=distribution)
        assert KERNELS[rule](draft, given.scores.distribution, given.round) is None
    assert KERNELS[rule](given.draft, PointMass(given.draft.units), given.round) is None


@pytest.mark.gpu
@pytest.mark.parametrize("rule", [*KERNELS, Block])
def test_verdicts_over_a_large_vocabulary(reference, make, rule):
    given = drafted(make("chain", rows=8, nodes=9, vocab=128_256), 0.5)
    found = rule().accept(given.draft, given.scores, given.round)
    with reference():
        same(found, rule().accept(given.draft, given.scores, given.round))
