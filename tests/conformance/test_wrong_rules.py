"""Rules that claim too much, or touch what is not theirs: the check that is meant for it fails, and no other."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated

import pytest
import torch
from pydantic import Field

from mmspec.core.distributions import Categorical, PointMass, reflection
from mmspec.core.noise import Round, Substream
from mmspec.core.rules import Block, Match, Rejection, Synthetic, walk
from mmspec.core.types import Draft, Scores, Verdict
from mmspec.registry import RuleSpec
from mmspec.testing import checks_of
from mmspec.testing.conformance import benches, rule_trials
from mmspec.testing.conformance.exactness import joint_of, judged, sample
from mmspec.testing.conformance.subject import Trial
from mmspec.testing.lean import Leaning
from mmspec.testing.statistics import total_variation


@pytest.fixture(autouse=True)
def few_toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """One toy, chains and a tree of it, for speed; the whole kit runs in `test_first_party`."""
    small = replace(
        benches.markov(),
        drafters={name: benches.markov().drafters[name] for name in ("chain", "tree without")},
        rows=10_000,
    )
    monkeypatch.setattr(rule_trials, "toys", lambda: [small])


class SaysInvariant(Rejection):
    exactness = "invariant"


class SaysLossless(Rejection):
    """Accepts a little too much."""

    bias = 1.5

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        noise, distribution = round.fresh(draft.nodes), scores.distribution
        if draft.nodes == 1 or draft.distribution is None or isinstance(distribution, PointMass):
            return walk(draft, distribution.draw(noise))
        assert isinstance(distribution, Categorical) and isinstance(draft.distribution, Categorical)
        p = distribution.take(draft.index.parent[:, 1:])
        q, x = draft.distribution, draft.drafted
        coin = round.fresh(draft.nodes - 1).substream(Substream.COIN).uniform()
        rest = p.residual(q)
        rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, p.probs)
        free = Categorical(rest).draw(round.fresh(draft.nodes - 1).substream(Substream.RESIDUAL))
        kept = (coin * q.of(x) < self.bias * p.of(x)) & draft.valid[:, 1:]
        drawn = distribution.draw(noise)
        drawn[:, :-1] = torch.where(kept, x, torch.where(draft.valid[:, 1:], free, drawn[:, :-1]))
        return walk(draft, drawn)


class TwoPercent(SaysLossless):
    """Keeps a draft with 1.02 times the chance that it has."""

    bias = 1.02


@dataclass(frozen=True)
class BiasOptions:
    """Options of the lossy rule."""

    bias: Annotated[float, Field(ge=1, le=8)] = field(default=1.5, metadata={"help": "1 is exact; more accepts more"})


class Lossy(SaysLossless):
    exactness = "lossy"

    def __init__(self, options: BiasOptions = BiasOptions()) -> None:
        self.bias = options.bias


@dataclass(frozen=True)
class BlindOptions:
    """Options that make nothing exact."""

    bias: Annotated[float, Field(ge=2, le=8)] = field(default=3.0, metadata={"help": "accepts too much at any value"})


class NeverStrict(Lossy):
    def __init__(self, options: BlindOptions = BlindOptions()) -> None:
        self.bias = options.bias


class GlobalNoise(Match):
    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        torch.rand(1)
        return super().accept(draft, scores, round)


class Rewrites(Match):
    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        verdict = super().accept(draft, scores, round)
        if draft.nodes > 1:
            draft.valid[:, -1] = False
        return verdict


class NeverAccepts(Block):
    """Lossless, and of no use where p = q."""

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        keeps_q = draft.distribution is not None and draft.nodes > 1
        refused = torch.cat([draft.valid[:, :1], draft.valid[:, 1:] & False], 1)
        return super().accept(replace(draft, valid=refused) if keeps_q else draft, scores, round)


class NoPath(Match):
    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        verdict = super().accept(draft, scores, round)
        return replace(verdict, path=verdict.path.clamp(min=0))


class BelievesAnyDraft(Rejection):
    """Takes a unit of no distribution for a draft of probability 0."""

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        if (
            draft.nodes > 1
            and isinstance(draft.distribution, Categorical)
            and not bool(draft.distribution.finite().all())
        ):
            distribution = replace(draft.distribution, probs=draft.distribution.probs.nan_to_num(0.0))
            draft = replace(draft, distribution=distribution, valid=torch.ones_like(draft.valid))
        return super().accept(draft, scores, round)


class SaysLossy(Synthetic):
    """Its reports say synthetic."""


FAULTS: dict[type, tuple[str, set[str]]] = {
    SaysInvariant: ("invariant", {"output-equals-plain"}),
    SaysLossless: ("lossless", {"output-follows-the-distribution"}),
    GlobalNoise: ("invariant", {"global-generators-stay"}),
    Rewrites: ("invariant", {"draft-and-scores-stay"}),
    NoPath: ("invariant", {"verdicts-are-paths"}),
    BelievesAnyDraft: ("lossless", {"degenerate-drafts-do-no-harm"}),
    NeverStrict: ("lossy", {"strict-end-is-exact"}),
    SaysLossy: ("lossy", {"manifest-agrees", "lossy-says-so"}),
}


@pytest.mark.parametrize("rule", FAULTS)
def test_a_fault_fails_its_own_check_and_no_other(rule: type, checked: Callable, failed: Callable) -> None:
    exactness, checks = FAULTS[rule]
    options = f"{__name__}:BlindOptions" if rule is NeverStrict else None
    found = checked(rule, "rule", exactness=exactness, options=options)
    assert failed(found) == checks, {name: found[name] for name in failed(found)}


def test_a_rule_that_wastes_good_drafts_is_seen(checked: Callable, failed: Callable) -> None:
    assert failed(checked(NeverAccepts, "rule")) >= {"equal-distributions-accept-all"}


def test_a_lossy_rule_gives_its_distance_and_its_strict_end(checked: Callable, failed: Callable) -> None:
    found = checked(Lossy, "rule", options=f"{__name__}:BiasOptions")
    assert not failed(found), found
    distance = float(found["lossy-says-so"].number.split()[2])
    assert 0.02 < distance < 0.5 and "chance alone" in found["lossy-says-so"].number
    assert found["strict-end-is-exact"].number.startswith("bias = 1: χ² p = ")
    assert "output-follows-the-distribution" not in found and "greedy-at-zero" not in found


def thoroughly(acme: Callable, rule: type) -> str:
    """The number of a thorough `output-follows-the-distribution`; it raises where the check fails."""
    made = RuleSpec(name="mine", factory=f"{rule.__module__}:{rule.__name__}", exactness="lossless", summary="Mine.")
    checks = checks_of("mine", registry=acme(made), thorough=True)
    return next(check for check in checks if check.name == "output-follows-the-distribution")()


@pytest.mark.slow
def test_two_percent_too_many_are_seen_by_thorough_checks(acme: Callable) -> None:
    with pytest.raises(AssertionError, match="400,000 rows"):
        thoroughly(acme, TwoPercent)


@pytest.mark.slow
def test_two_percent_too_many_of_a_reflection_are_seen_by_thorough_checks(
    acme: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule_trials, "toys", lambda: [benches.gaussian()])
    assert "KS p = " in thoroughly(acme, Rejection)
    mirror = reflection.mirror
    monkeypatch.setattr(reflection, "mirror", lambda off, apart, bound: mirror(off, apart, bound + math.log(1.02)))
    with pytest.raises(AssertionError, match="lean to the draft"):
        thoroughly(acme, Rejection)


def test_what_is_missed_is_smaller_than_what_a_check_says_that_it_sees() -> None:
    """Both numbers of a check, by what 150,000 rows show of the bias, against what 10,000 rows say that they see."""
    bench = benches.markov()
    few, many = (Trial(None, bench, bench.drafters["chain"], "chain", rows) for rows in (10_000, 150_000))
    leaning = Leaning(TwoPercent())
    missed = total_variation(sample(many, leaning, 1), joint_of(bench)), leaning.lean.excess / leaning.lean.count
    evidence = judged(few, TwoPercent())
    sees = [float(share) / 100 for share in re.findall(r"sees a bias ≥ ([\d.]+)%", evidence.number)]
    print(evidence, missed)
    assert evidence.p > 1e-4, "few rows let it pass"
    assert len(sees) == 2 and all(says > really > 0 for says, really in zip(sees, missed, strict=True))


@pytest.mark.parametrize("rule", [Match, Rejection])
def test_right_rules_pass(rule: type, checked: Callable) -> None:
    found = checked(rule, "rule")
    assert {name for name, outcome in found.items() if outcome.status != "pass"} <= {"import-is-cheap"}, found
