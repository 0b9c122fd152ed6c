"""The race over logits and the walk give the verdicts of `match`."""

from dataclasses import replace

import pytest
import torch

from mmspec.core.kernels import fused
from mmspec.core.rules import Match
from tests.kernels.cases import SHAPES, same

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@pytest.fixture
def small_parts(device, monkeypatch):
    """Small vocabularies are cut into parts, too."""
    from mmspec.core.kernels import race

    monkeypatch.setattr(race, "SPAN", 128)
    monkeypatch.setattr(race, "BLOCK", 64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_verdicts(reference, small_parts, make, shape, dtype):
    accepted = 0
    for seed, vocab in enumerate((5, 37, 300)):
        with reference():
            given = make(shape, seed, vocab=vocab, dtype=DTYPES[dtype])
            right = Match().accept(given.draft, given.scores, given.round)
        found = fused.drawn_and_walked(given.draft, given.scores.distribution, given.round)
        assert found is not None
        same(found, right)
        accepted += int(found.length.sum())
    assert accepted > 5 or shape == "alone"


def test_rows_that_are_not_valid(reference, make):
    """NaN, infinity and rows without mass give what torch gives, and harm no other node."""
    given = make("chain", nodes=6)
    logits = given.logits.clone()
    logits[0, 1, 7], logits[1, 2], logits[2, 0, 3] = torch.nan, -torch.inf, torch.inf
    logits[0, 4, 1:] = -torch.inf
    given = replace(given, logits=logits)
    found = Match().accept(given.draft, given.scores, given.round)
    with reference():
        same(found, Match().accept(given.draft, given.scores, given.round))
    assert found.drawn[0, 4] == 0


def test_a_draw_does_not_depend_on_the_other_nodes_or_rows(small_parts, make):
    given = make("chain", vocab=300)
    whole = Match().accept(given.draft, given.scores, given.round).drawn
    short = replace(given, draft=given.draft.shallower(9), logits=given.logits[:, :1])
    from mmspec.core.kernels.race import race

    alone = race(short.logits, given.round.source.key, given.round.emitted, given.draft.index.depth[:, :1])
    assert torch.equal(alone.unit.gather(2, alone.value.argmax(-1, keepdim=True))[:, 0, 0], whole[:, 0])


def test_logits_are_forgotten_with_the_probabilities_that_they_made(make):
    """A distribution that was changed is drawn from as it is."""
    given = make("chain")
    changed = replace(given.scores.distribution, probs=given.scores.distribution.probs.roll(1, -1))
    assert changed.logits is None and fused.drawn_and_walked(given.draft, changed, given.round) is None


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("vocab", [32_000, 151_936])
def test_verdicts_over_large_vocabularies(reference, make, shape, vocab):
    for dtype in DTYPES.values():
        with reference():
            given = make(shape, rows=4, nodes=16, vocab=vocab, dtype=dtype)
            right = Match().accept(given.draft, given.scores, given.round)
        same(Match().accept(given.draft, given.scores, given.round), right)
