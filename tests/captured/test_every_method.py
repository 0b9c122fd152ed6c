"""Every installed method on every target that it fits, by the registry: captured, or the reason why not.

Captured rounds are compared with the eager loop's in lock-step. A new method or target is tried without a line here.
"""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from mmspec.core.decoder import Decoder
from mmspec.core.protocols import Drafter
from mmspec.core.rules import Rule
from mmspec.registry import MethodSpec, TargetSpec, installed, pair
from mmspec.testing.conformance.benches import Bench
from mmspec.testing.conformance.subject import Subject, targets
from tests.captured.conftest import forget, lockstep
from tests.support.examples import EXAMPLES

ROWS = (0, 1, 2)
NO_SHAPE = r"rounds are not compiled: {} cannot run all passes with one number of nodes"
EAGER: Mapping[str, str] = {
    "continuous-ar": NO_SHAPE.format("ContinuousTarget"),
    "xlnet": NO_SHAPE.format("XLNetTarget"),
    "token-frames": r"rounds are not captured, and run eagerly: ValueError: the pass of TokenFramesTarget cannot be",
    "zoo:rapid": NO_SHAPE.format("AugmentedTarget"),
}
"""Targets, and methods that wrap their target, whose rounds are not captured at all, and what is then said."""
WITHIN = "zoo:mirror-sd"
"""A drafter that acts within the target's passes."""
NEVER: Mapping[str, str] = {
    WITHIN: "MirrorSD hears an early exit in the middle of the target's pass",
    "zoo:specmemo": "captured rounds keep a cache of their own, which a memory budget would have to count",
}
"""Methods whose rounds are not captured on any target, and what is then said."""
FAST = {
    (WITHIN, "transformers"),
    ("video:frame-gs-sjd", "token-frames"),
    ("continuous:reflection", "continuous-ar"),
}
MODELS = (
    *("zoo:ambedkar", "zoo:rapid", "zoo:s2d", "zoo:vocab-trim", "zoo:omnidraft", "zoo:specmemo"),
    *("text:sequoia", "text:llmcad", "text:rasd", "text:united", "zoo:pearl", "zoo:saguaro", WITHIN),
    *("ssm:stree", "text:draft-model", "text:pard", "text:draft-tree", "text:dyspec", "text:rsd", "text:ppd"),
    *("text:gated-lora", "text:ppd-model"),
)
HEADS = (
    *("text:eagle", "text:dflash", "text:p-eagle", "text:falcon", "text:medusa"),
    *("text:hydra", "text:clover", "text:clover-2", "text:mlp-speculator", "text:arctic-lstm", "text:mtp"),
)
WRITERS = ("emu3", "chameleon", "grid-language", "own-pictures")
OWN_TESTS = ("text:gemma4-assistant", "zoo:layer-skip", "zoo:swift", "zoo:del", "zoo:bild", "zoo:fly")
UNTRIED = {
    ("continuous:draft-reflection", "continuous-ar"),
    ("continuous:cspd", "continuous-ar"),
    ("text:mtp", "recurrent"),
    ("text:gated-lora", "recurrent"),
    *((method, "recurrent") for method in (WITHIN, "zoo:specmemo", "zoo:omnidraft")),
    ("text:eagle", "llamagen"),
    *((method, target) for method in MODELS for target in ("glm-image", *WRITERS)),
    *((method, target) for method in HEADS for target in WRITERS),
    *(("zoo:judge", target) for target in ("recurrent", "glm-image", *WRITERS)),
    *((method, target) for method in OWN_TESTS for target in ("transformers", "recurrent", "glm-image", *WRITERS)),
}
"""Pairs that the conformance kit does not put together. Those over continuous tokens run eagerly: their target decides
that. For the heads, a judge, and draft models of the models that write pictures, there is no example of that target;
`tests/heads` and `tests/image` have their own tests. So have self-drafting and Gemma 4's assistants, whose examples
are other models, and `bild`, which the kit's small models are never sure enough for. `fly` is tried as a rule.
"""
PLAYED = "frames"
"""A player's target, which has no example: its units come from outside. Its own tests run with `compile`, too."""


def fitting() -> list[tuple[str, str]]:
    """All pairs of a method and a target that fit, by the words of their manifests."""
    registry = installed()
    methods: tuple[MethodSpec, ...] = registry.components("method")
    found: tuple[TargetSpec, ...] = registry.components("target")
    return [
        (method.qualified, target.name)
        for method in methods
        for target in found
        if target.name != PLAYED and not pair(registry, method, offers=target.offers).missing(target.offers)
    ]


PAIRS = [found for found in fitting() if found not in UNTRIED]


def parts_of(method: str, target: str) -> tuple[Bench, Callable[[], Drafter | None], Callable[[], Rule]]:
    """The bench of a target, and the method's drafter and rule, new ones in every call."""
    registry = installed()
    subject = Subject(registry.get("method", method), registry, given=EXAMPLES)
    bench = next(bench for bench in targets(registry, EXAMPLES) if bench.name == target)
    pairing = pair(registry, method, offers=bench.target.offers)
    if pairing.drafter is None:
        return bench, lambda: None, lambda: pairing.rule.load()()
    alike = (trial for trial in subject.trials if type(trial.bench.target) is type(bench.target))
    named = (trial for trial in subject.trials if trial.bench.name == target)  # whose target may be wrapped
    trial = next(named, None) or next(alike)
    return trial.bench, trial.drafter, subject.rule


def test_every_pair_is_tried() -> None:
    assert {"transformers", "recurrent", "llamagen", "janus", *EAGER} <= {name for pair in PAIRS for name in pair}
    assert set(PAIRS) >= FAST
    assert {target for _, target in PAIRS} <= {bench.name for bench in targets(installed(), EXAMPLES)}


@pytest.mark.parametrize(
    ("method", "target"), [pytest.param(*p, marks=[] if p in FAST else pytest.mark.slow) for p in PAIRS]
)
def test_a_method_is_captured_or_says_why_not(method: str, target: str) -> None:
    bench, drafter, rule = parts_of(method, target)
    inputs, warp = bench.prompt(ROWS), bench.warp

    def decoder(shape: Any) -> Decoder:
        return Decoder(bench.target, drafter(), rule(), k=4, shape=shape, compile=True)

    if why := EAGER.get(target) or EAGER.get(method):
        with pytest.warns(UserWarning, match=why):
            output = decoder(None).generate(inputs, 12, seed=3, warp=warp)
        assert not output.report.compiled and output.report.emitted == 12 * len(ROWS)
        return
    if method in NEVER:
        with pytest.warns(UserWarning, match=NEVER[method]):
            output = decoder("one").generate(inputs, 12, seed=3, warp=warp)
        assert not output.report.compiled and output.report.accepted
        return
    found: Any = bench.target
    forget(found.model)  # what other tests captured
    eager, captured = decoder("one"), decoder("one")
    eager.captures.refused = True
    assert lockstep(eager, captured, inputs, 20, seed=3, warp=warp) > 3
    assert lockstep(eager, captured, inputs, 13, seed=4, warp=bench.greedy) > 3
