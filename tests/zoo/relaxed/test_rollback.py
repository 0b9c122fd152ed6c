"""`rollback` and `bild`: BiLD's corrected rule by hand, its bias in closed form, its two ends, its label."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mmspec
from mmspec.compare.equality import assert_same
from mmspec.core.decoder import Decoder
from mmspec.core.distributions import Categorical, PointMass
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.shapes import Chain
from mmspec.core.noise import Round
from mmspec.core.philox import PhiloxSource
from mmspec.core.rules import Rejection
from mmspec.core.types import Draft, Scores
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.statistics import joint_p_value
from mmspec_zoo.relaxed.rollback import Rollback, RollbackOptions, bias
from tests.support.draft_rounds import played


def accepted_of(units: list[int], scores: torch.Tensor, threshold: float) -> tuple[int, int]:
    """Greedy: units that stay, and the next one, of a chain `units` behind a root with `scores [node, vocab]`."""
    draft = Draft.chain(torch.tensor([units])).rooted(torch.tensor([0]), torch.tensor([9]))
    best, finite = scores.argmax(-1)[None], torch.ones(1, len(scores), dtype=torch.bool)
    noise = Round(PhiloxSource.seeded(0, 1), torch.zeros(1).long(), [0])
    rule = Rollback(RollbackOptions(threshold=threshold))
    verdict = rule.accept(draft, Scores(PointMass(best), finite, logits=scores[None]), noise)
    return int(verdict.length), int(verdict.unit)


def test_the_first_unlikely_unit_is_rolled_back_and_all_behind_it() -> None:
    """By hand: -log p of the drafted units 1, 2, 0 is 0.7, 0.1 and 3."""
    probs = torch.tensor([[0.504, 0.496, 0.0], [0.05, 0.045, 0.905], [0.05, 0.55, 0.4], [0.1, 0.2, 0.7]])
    scores = (probs + 1e-9).log()
    assert accepted_of([1, 2, 0], scores, 2.0) == (2, 1), "the third one is too unlikely; the target writes 1"
    assert accepted_of([1, 2, 0], scores, 3.1) == (3, 2), "all stay, and one more"
    assert accepted_of([1, 2, 0], scores, 0.5) == (0, 0), "the target would have written 0"
    assert accepted_of([0, 2, 1], scores, 0.0) == (3, 2), "the target's own units are never rolled back"


def test_released_code_stops_looking_behind_a_flagged_unit_of_the_targets_own() -> None:
    """Its rule, as a negative control: the first flagged unit is the target's own, so the next one stays, too."""
    probs = torch.tensor([[0.3, 0.25, 0.45], [0.9, 0.09, 0.01], [0.4, 0.3, 0.3]])
    scores, units = probs.log(), [2, 2]
    flagged = [i for i, unit in enumerate(units) if -float(scores[i].log_softmax(-1)[unit]) > 0.5]
    assert flagged == [0, 1] and int(scores[0].argmax()) == units[0], "so the released code rolls nothing back"
    assert accepted_of(units, scores, 0.5) == (1, 0), "here the second one goes"


@pytest.mark.parametrize("threshold", [0.7, 1.5])
def test_the_output_of_a_node_follows_the_closed_form(threshold: float) -> None:
    generator, rows, vocab = torch.Generator().manual_seed(11), 50_000, 6
    p, q = (torch.softmax(torch.randn(vocab, generator=generator) * 1.5, -1) for _ in range(2))
    x = torch.multinomial(q, rows, replacement=True, generator=generator)[:, None]
    draft = Draft.chain(x, Categorical(q.expand(rows, 1, vocab)))
    draft = draft.rooted(torch.zeros(rows, dtype=torch.int64), torch.full((rows,), 5))
    scores = Scores(Categorical(p.expand(rows, 2, vocab)), torch.ones(rows, 2, dtype=torch.bool))
    zero = torch.zeros(rows, dtype=torch.int64)
    rule = Rollback(RollbackOptions(threshold=threshold))
    verdict = rule.accept(draft, scores, Round(PhiloxSource.seeded(3, rows), zero, [0] * rows))
    first = torch.where(verdict.length > 0, x[:, 0], verdict.unit)
    inside = -p.log() <= threshold
    out = q * inside + (1 - (q * inside).sum()) * p
    assert 0 < inside.sum() < vocab
    assert joint_p_value(first[:, None], out) > 1e-4
    assert joint_p_value(first[:, None], p) < 1e-4, "the bias must be seen, or this test is blind"
    tv, excess = bias(p[None, None], q[None, None], inside[None, None])
    assert abs(float(tv) - float((out - p).abs().sum() / 2)) < 1e-6
    assert verdict.tv is not None and torch.allclose(verdict.tv[:, 0], tv.float().expand(rows, 1)[:, 0], atol=1e-6)
    rate = float((verdict.length > 0).float().mean())
    assert abs(rate - float(torch.minimum(p, q).sum() + excess)) < 5e-3


def test_bild_drafts_while_the_small_model_is_sure(target: Any, good: Any, prompts: Callable) -> None:
    """The fall-back, round by round, without a cache: units are drafted while the largest probability is ≥ 0.6."""
    drafter = DraftModel(TransformersTarget(good, drafting=True), Chain(sure=0.6))
    decoder = Decoder(TransformersTarget(target), drafter, Rollback(RollbackOptions(threshold=2.0)), k=5)
    recorded, _ = played(decoder, prompts(1), Warp(sample=False), rounds=12)
    lengths = set()
    for known, _, draft in recorded:
        units = known[0].tolist()
        expected = list[int]()
        while len(expected) < 5:
            with torch.no_grad():
                probs = good(input_ids=torch.tensor([units + expected])).logits[0, -1].softmax(-1)
            if float(probs.max()) < 0.6:
                break
            expected.append(int(probs.argmax()))
        assert draft.units[0][draft.valid[0]].tolist() == expected
        lengths.add(len(expected))
    assert len(lengths) > 1, "drafts all have one length, so nothing ended early"


@pytest.mark.parametrize("how", [{"threshold": 0.0}, {"sure": 1.0}], ids=["nothing stays", "never sure"])
@pytest.mark.compiled
def test_its_ends_write_what_the_target_writes(
    target: Any, good: Any, prompts: Callable, theirs: Callable, ours: Callable, how: dict[str, float]
) -> None:
    call = {"max_new_tokens": 24, "do_sample": False}
    mine = ours(target, prompts(3), 0, {"method": "bild", "model": good, "k": 4, **how}, **call)
    assert_same(mine.ids, theirs(target, prompts(3), 0, **call), mine.state)
    assert mine.report.bias.tv == 0 and (mine.report.accepted > 0) == ("threshold" in how)


def test_a_high_threshold_keeps_what_the_small_model_writes(target: Any, bad: Any, prompts: Callable) -> None:
    with mmspec.enable(target, "bild", model=bad, k=4, sure=0.0, threshold=1e9) as spec:
        ids = target.generate(**prompts(1), max_new_tokens=16, do_sample=False)
    report = spec.report
    assert report is not None and report.exactness == "lossy" and report.bias is not None and report.bias.tv > 0.3
    assert report.acceptance_length > 3
    with torch.no_grad():
        alone = bad(input_ids=ids[:, :-1]).logits.argmax(-1)[0, 14 - 1 :]
    assert (alone == ids[0, 14:]).float().mean() > 0.6, "four of five units are the small model's own"


@pytest.mark.slow
def test_the_threshold_orders_acceptance(target: Any, good: Any, prompts: Callable) -> None:
    small, lengths = TransformersTarget(good, drafting=True), list[float]()
    for rule in (Rejection(), *(Rollback(RollbackOptions(threshold=t)) for t in (0.0, 2.0, 6.0))):
        decoder = Decoder(TransformersTarget(target), DraftModel(small), rule, k=4)
        lengths.append(decoder.generate(prompts(3), 60, seed=1).report.acceptance_length)
    assert lengths[1] < lengths[2] < lengths[3] and lengths[3] > lengths[0]


@pytest.mark.parametrize("how", [{"threshold": -1.0}, {"sure": 1.5}])
def test_bad_options(target: Any, good: Any, how: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="allowed is float >= 0"):
        mmspec.enable(target, "bild", model=good, **how)
