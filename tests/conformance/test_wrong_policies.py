"""Policies with one fault each: the check that is meant for it fails, and no other."""

from collections.abc import Callable, Sequence

import pytest

from mmspec.core.types import Draft
from mmspec.registry import installed
from mmspec.testing import check_component


class Honest:
    def __init__(self, k: int) -> None:
        self.k = k

    def budget(self) -> int:
        return self.k - 1

    def trim(self, draft: Draft) -> Draft:
        return draft

    def observe(self, depth: int, emitted: Sequence[int], seconds: float) -> None:
        pass


class AsksForMore(Honest):
    def budget(self) -> int:
        return self.k + 2


class Gives(Honest):
    def observe(self, depth: int, emitted: Sequence[int], seconds: float) -> None:
        raise RuntimeError("no idea")


class Redraws(Honest):
    def trim(self, draft: Draft) -> Draft:
        draft.units.zero_()
        return draft


FAULTS = {AsksForMore: "budgets-fit", Gives: "budgets-fit", Redraws: "trims-alone"}


@pytest.mark.parametrize("policy", [Honest, *FAULTS])
def test_a_fault_fails_its_own_check_and_no_other(policy: type, checked: Callable, failed: Callable) -> None:
    found = checked(policy, "policy")
    assert failed(found) == {FAULTS[policy]} if policy in FAULTS else not failed(found), found
    assert {name for name, outcome in found.items() if outcome.status == "skip"} == {"import-is-cheap"}


def test_our_own_keep_their_promises() -> None:
    for name in ("fixed", "confidence", "goodput", "payoff"):
        outcomes = check_component(installed().get("policy", name))
        assert {outcome.status for outcome in outcomes} == {"pass"}, outcomes
