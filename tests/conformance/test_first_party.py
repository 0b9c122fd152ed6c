"""Every component that we ship keeps its promises, and is really tried."""

import pytest

from mmspec.registry import installed
from mmspec.testing import Outcome, check_component

TRIED_NOWHERE = {("candidates", "rows-are-independent")}
"""Not a promise of theirs: one row at a time."""


def judged(outcomes: list[Outcome]) -> None:
    assert not [outcome for outcome in outcomes if outcome.status == "fail"]
    skipped = {(outcome.component.split(":")[1], outcome.check) for outcome in outcomes if outcome.status == "skip"}
    assert skipped <= TRIED_NOWHERE
    assert all(outcome.number for outcome in outcomes)


@pytest.mark.parametrize("name", ["text:transformers", "text:prompt-lookup"])
def test_some_of_them(name: str) -> None:
    judged(check_component(name))


@pytest.mark.slow
@pytest.mark.parametrize("plugin", [p.name for p in installed().plugins() if p.status == "ok" and p.components])
def test_all_of_them(plugin: str) -> None:
    outcomes = check_component(plugin)
    for o in outcomes:
        print(f"{o.kind} {o.component}: {o.check}: {o.status}, {o.number} {o.reason}")
    judged(outcomes)
