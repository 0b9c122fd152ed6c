"""Every component that we ship keeps its promises, and is really tried."""

import pytest

from mmspec.registry import installed
from mmspec.testing import Outcome, check_component
from mmspec.testing.conformance.benches import history
from tests.support.examples import EXAMPLES

PICTURES = {f"image:{name}" for name in ("gs-sjd", "mc-sjd", "sjd", "gsd", "lantern")}
REFLECTED = {"continuous:reflection", "continuous:draft-reflection", "continuous:denoise-ahead"}
PUBLISHED = {"continuous:cspd", "continuous:causal-sets"}
PLAYED = {f"video:{name}" for name in ("branch-prediction", "frame-gs-sjd", "nfd", "student")}
CONTINUOUS = {"continuous:continuous-jacobi", "continuous:continuous-draft-model", "continuous:continuous-sets"}
SETS = (
    "verdicts-are-paths",
    "draft-and-scores-stay",
    "global-generators-stay",
    "same-seed-same-output",
    "rows-are-independent",
    "lossy-says-so",
    "degenerate-drafts-do-no-harm",
)
FRAMES = (
    "can-be-made",
    "chains-are-exact",
    "trees-are-exact",
    "verify-keeps-nothing",
    "drafts-grow-in-pieces",
    "commits-are-remembered",
    "rows-are-independent",
)
TRIED_NOWHERE = {
    ("text:candidates", "rows-are-independent"),
    ("zoo:ambedkar", "enabled-equals-stock"),
    ("zoo:omnidraft", "distributions-are-normalised"),
    *(("zoo:omnidraft", check) for check in ("units-follow-their-distribution", "rounds-draw-fresh-noise")),
    *(("zoo:assd", check) for check in ("disabling-leaves-no-trace", "enabled-equals-stock")),
    ("continuous:draft-reflection", "sampled-follows-the-distribution"),
    *(
        (method, check)
        for method in PICTURES | REFLECTED | PUBLISHED | PLAYED
        for check in ("disabling-leaves-no-trace", "enabled-equals-stock")
    ),
    *((method, "greedy-equals-plain") for method in REFLECTED),
    *(
        ("continuous:denoise-ahead", check)
        for check in ("greedy-at-zero", "equal-distributions-accept-all", "disjoint-distributions-accept-none")
    ),
    *(("continuous:causal-sets", check) for check in SETS),
    *(("video:frames", check) for check in FRAMES),
    *(
        (drafter, check)
        for drafter in CONTINUOUS
        for check in ("match-equals-plain", "ragged-rounds-do-no-harm", "distributions-are-normalised")
    ),
}
"""Not a promise of theirs: one row at a time; pictures come from a pipeline, no `generate` of a model makes them;
units of `omnidraft` are drawn in two steps; continuous units are never equal, and not greedy; no `generate` fills
blanks, and a conditioned text is not plain decoding's; only one drafter makes sets; frames by denoising have no
distribution that the kit could draw actions from. What the kit leaves out, tests of their own have."""


def judged(outcomes: list[Outcome]) -> None:
    assert not [outcome for outcome in outcomes if outcome.status == "fail"]
    skipped = {(outcome.component, outcome.check) for outcome in outcomes if outcome.status == "skip"}
    assert skipped <= TRIED_NOWHERE
    assert all(outcome.number for outcome in outcomes)


def test_a_target() -> None:
    judged(check_component("text:transformers", examples=EXAMPLES))


@pytest.mark.compiled("no shape", "no pass")
def test_a_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one toy; the slow tier tries it, and all others, on every one."""
    monkeypatch.setattr("mmspec.testing.conformance.subject.toys", lambda: [history()])
    judged(check_component("text:prompt-lookup", examples=EXAMPLES))


@pytest.mark.slow
@pytest.mark.parametrize("plugin", [p.name for p in installed().plugins() if p.status == "ok" and p.components])
def test_all_of_them(plugin: str) -> None:
    outcomes = check_component(plugin, examples=EXAMPLES)
    for o in outcomes:
        print(f"{o.kind} {o.component}: {o.check}: {o.status}, {o.number} {o.reason}")
    judged(outcomes)
