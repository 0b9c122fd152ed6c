"""The kit sees published bugs in our own components: with the bug put back, a check fails that names it."""

from collections.abc import Callable

import pytest

from mmspec.testing import checks_of
from tests.support.examples import EXAMPLES
from tests.support.mutants import MUTANTS

FAST = {
    "noise-by-position-under-block": ("core:block", "output-follows-the-distribution"),
    "per-row-draws-on-a-shared-node": ("core:match", "output-equals-plain"),
}
SLOW = {
    "raw-q": ("text:draft-model", "units-follow-their-distribution"),
    "unit-of-no-distribution-as-a-proposal": ("core:block", "degenerate-drafts-do-no-harm"),
    "noise-by-position-under-coupled-redraws": ("core:rejection", "output-follows-the-distribution"),
    "independent-redraw-committed-at-first-mismatch": ("core:rejection", "output-follows-the-distribution"),
    "equal-siblings-claim-twice": ("core:match", "output-equals-plain"),
    "deepest-of-equal-siblings": ("core:recursive-rejection", "output-follows-the-distribution"),
    "without-replacement-reported-as-with": ("core:recursive-rejection", "equal-distributions-accept-all"),
    "residual-without-renormalising": ("core:recursive-rejection", "emits-nothing-impossible"),
    "bonus-dropped-on-full-accept": ("core:match", "verdicts-are-paths"),
    "argmax-reported-as-softmax": ("text:draft-model", "units-follow-their-distribution"),
    "draft-noise-once-per-call": ("text:draft-model", "rounds-draw-fresh-noise"),
    "sibling-distribution-without-renormalising": ("text:draft-tree", "distributions-are-normalised"),
    "rerank-of-sampled-siblings": ("text:draft-tree", "units-follow-their-distribution"),
}


def check_of(component: str, name: str) -> Callable[[], str]:
    return next(c for c in checks_of(component, examples=EXAMPLES) if c.name == name and c.component.kind != "method")


@pytest.mark.parametrize("mutant", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_published_bug_is_seen(mutant: str) -> None:
    component, name = {**FAST, **SLOW}[mutant]
    with MUTANTS[mutant].apply(), pytest.raises(AssertionError) as seen:
        check_of(component, name)()
    print(f"{mutant}: {seen.value}")
