"""Drafters with one fault each: the check that is meant for it fails, and no other."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.distributions import Categorical
from mmspec.core.drafters.host import HostDrafterAdapter
from mmspec.core.types import Draft
from mmspec.testing import Example
from mmspec.testing.conformance.benches import history

VOCAB = 3


def here() -> Example:
    """One toy is enough: the one that sees all of its text."""
    bench = history()
    return Example(target=bench.target, prompt=bench.prompt, again=bench.again)


class Honest:
    """Draws every unit from the same distribution."""

    offers = frozenset({"chain", "q"})
    needs = frozenset({"discrete"})
    example = staticmethod(here)

    def bind(self, target: Any) -> None:
        pass

    def width(self, k: int) -> int:
        return k

    def start(self, state: Any, inputs: Any) -> Any:
        return None

    def distribution(self, state: Any, k: int) -> Tensor:
        return torch.tensor([0.5, 0.3, 0.2]).expand(state.rows, k, VOCAB)

    def propose(self, state: Any, k: int, noise: Any) -> Draft:
        distribution = Categorical(self.distribution(state, k))
        return Draft.chain(distribution.draw(noise.chain(1, k)), distribution)

    def observe(self, state: Any, step: Any) -> None:
        pass


class WrongDistribution(Honest):
    def propose(self, state: Any, k: int, noise: Any) -> Draft:
        draft = super().propose(state, k, noise)
        return Draft.chain(draft.units, Categorical(self.distribution(state, k) * 0.4 + 0.2))


class Unnormalised(Honest):
    def propose(self, state: Any, k: int, noise: Any) -> Draft:
        draft = super().propose(state, k, noise)
        return Draft.chain(draft.units, Categorical(self.distribution(state, k) * 1.2))


class StaleNoise(Honest):
    """Draws by the row's place alone, so that every round is like the one before."""

    def propose(self, state: Any, k: int, noise: Any) -> Draft:
        if noise.shared:
            return super().propose(state, k, noise)
        distribution = Categorical(self.distribution(state, k))
        fixed = state.source.fresh(torch.zeros_like(state.emitted), 1, k)
        return Draft.chain(distribution.draw(fixed), distribution)


class RewritesHistory(Honest):
    def observe(self, state: Any, step: Any) -> None:
        state.history[:, 0] = 1


class OutsideTheVocabulary(Honest):
    def propose(self, state: Any, k: int, noise: Any) -> Draft:
        draft = super().propose(state, k, noise)
        return Draft.chain(torch.where(torch.arange(k) == 2, VOCAB, draft.units), draft.distribution)


class LooksAtItsNeighbour(Honest):
    def propose(self, state: Any, k: int, noise: Any) -> Draft:
        draft = super().propose(state, k, noise)
        return Draft.chain(draft.units.roll(1, 0), draft.distribution)


class TooLong(Honest):
    def propose(self, state: Any, k: int, noise: Any) -> Draft:
        return super().propose(state, k + 1, noise)


class Deep(TooLong):
    def width(self, k: int) -> int:
        return 2 * k


class Short(Honest):
    def propose(self, state: Any, k: int, noise: Any) -> Draft:
        draft = super().propose(state, k, noise)
        return Draft.chain(draft.units.int(), draft.distribution)


class Gives(Honest):
    def propose(self, state: Any, k: int, noise: Any) -> Draft:
        if state.host.emitted[0] > 9:
            raise RuntimeError("no idea")
        return super().propose(state, k, noise)


class CannotMeet(Honest):
    def bind(self, target: Any) -> None:
        raise KeyError("vocabulary")


class Remembers(Honest):
    calls = 0

    def start(self, state: Any, inputs: Any) -> Any:
        self.calls += 1

    def propose(self, state: Any, k: int, noise: Any) -> Draft:
        draft = super().propose(state, k, noise)
        return draft if self.calls == 1 else Draft.chain(draft.units, draft.distribution, valid=draft.units > 0)


class CommitsForTheLoop(Honest):
    def bind(self, target: Any) -> None:
        self.target = target

    def observe(self, state: Any, step: Any) -> None:
        self.target.commit(state.cache, step.verdict.path, step.count)


class HasADistributionAndDoesNotSay(Honest):
    offers = frozenset({"chain"})


class Tree(Honest):
    """The two likeliest units, and one more below the first."""

    offers = frozenset({"tree"})
    units = (0, 1, 2)

    def width(self, k: int) -> int:
        return 3

    def parents(self) -> Any:
        return (-1, -1, 0)

    def propose(self, state: Any, k: int, noise: Any) -> Draft:
        nodes = 3 if k > 1 else 2
        parents = self.parents()[:nodes]
        if isinstance(parents, Tensor):
            parents = parents.expand(state.rows, -1)
        return Draft.tree(torch.tensor(self.units[:nodes]).expand(state.rows, -1).clone(), parents)


class Twins(Tree):
    units = (1, 1, 2)


class ChildrenFirst(Tree):
    def parents(self) -> Any:
        return torch.tensor([1, -1, 0])


FAULTS = {
    WrongDistribution: "units-follow-their-distribution",
    Unnormalised: "distributions-are-normalised",
    RewritesHistory: "inputs-stay",
    OutsideTheVocabulary: "units-in-vocabulary",
    LooksAtItsNeighbour: "rows-are-independent",
    TooLong: "fits-the-budget",
    Deep: "fits-the-budget",
    Short: "drafts-have-their-shape",
    Gives: "never-raises",
    CannotMeet: "can-be-made",
    Remembers: "second-call-is-fresh",
    CommitsForTheLoop: "inputs-stay",
    HasADistributionAndDoesNotSay: "drafts-are-point-masses",
    Twins: "siblings-differ",
    ChildrenFirst: "parents-come-first",
}


@pytest.mark.parametrize("drafter", [Honest, Tree])
def test_right_drafters_pass(drafter: type, checked: Callable, failed: Callable) -> None:
    found = checked(drafter, "drafter")
    assert not failed(found), found
    assert {name for name, outcome in found.items() if outcome.status == "skip"} == {"import-is-cheap"}
    assert all(outcome.number for outcome in found.values())


@pytest.mark.parametrize("drafter", FAULTS)
def test_a_fault_fails_its_own_check_and_no_other(drafter: type, checked: Callable, failed: Callable) -> None:
    found = checked(drafter, "drafter")
    assert failed(found) == {FAULTS[drafter]}, {name: found[name] for name in failed(found)}
    assert found[FAULTS[drafter]].reason and found[FAULTS[drafter]].component == "acme:mine"


def test_noise_that_is_drawn_once_a_call_is_seen(checked: Callable, failed: Callable) -> None:
    assert "rounds-draw-fresh-noise" in failed(checked(StaleNoise, "drafter"))


class FromAGlobalGenerator(Honest):
    def propose(self, state: Any, k: int, noise: Any) -> Draft:
        return Draft.chain(torch.randint(VOCAB, (state.rows, k)))

    offers = frozenset({"chain"})


def test_a_global_generator_is_named(checked: Callable, failed: Callable) -> None:
    found = checked(FromAGlobalGenerator, "drafter")
    assert failed(found) == {"same-seed-same-draft", "rows-are-independent"}
    assert all("drew from a generator that all calls share" in found[name].reason for name in failed(found))


Lists = list[list[int]]


class Repeats(HostDrafterAdapter):
    """A drafter in plain Python."""

    example = staticmethod(here)

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(propose=self.lists))

    def lists(self, tokens: Lists, k: int) -> Lists:
        return [[row[-1]] * k for row in tokens]


class Floats(Repeats):
    def lists(self, tokens: Lists, k: int) -> Any:
        return [[row[-1] + 0.5] * k for row in tokens]


class BeyondK(Repeats):
    def lists(self, tokens: Lists, k: int) -> Lists:
        return super().lists(tokens, k + 5)


class ChangesItsLists(Repeats):
    def lists(self, tokens: Lists, k: int) -> Lists:
        drafts = super().lists(tokens, k)
        tokens[0].append(0)
        return drafts


class Misspelt(Repeats):
    def lists(self, tokens: Lists, k: int) -> Any:
        return tokens.lengths()  # type: ignore[attr-defined]


IN_PYTHON = {
    Floats: ("never-raises", ".5; unit ids are integers"),
    BeyondK: ("fits-the-budget", "9 units where k is 4"),
    ChangesItsLists: ("inputs-stay", "propose changed the lists of units that it was given"),
    Misspelt: ("never-raises", "AttributeError: 'list' object has no attribute 'lengths' (test_wrong_drafters.py:"),
}


@pytest.mark.parametrize("drafter", [Repeats, *IN_PYTHON])
def test_lists_are_looked_at_before_they_are_a_draft(drafter: type, checked: Callable, failed: Callable) -> None:
    found = checked(drafter, "drafter")
    check, reason = IN_PYTHON.get(drafter, ("", ""))
    assert failed(found) == {check} - {""}, found
    assert not check or reason in found[check].reason


class MisspeltInBind(Honest):
    def bind(self, target: Any) -> None:
        self.size = target.vocabulary


def test_an_error_is_said_once_with_its_line(checked: Callable, failed: Callable) -> None:
    found = checked(MisspeltInBind, "drafter")
    lines = [outcome.reason for outcome in found.values() if "(test_wrong_drafters.py:" in outcome.reason]
    assert failed(found) == {"can-be-made"} and "no attribute 'vocabulary'" in found["can-be-made"].reason
    assert lines == [found["can-be-made"].reason]


def test_a_manifest_that_disagrees_with_its_class(checked: Callable, failed: Callable) -> None:
    found = checked(Honest, "drafter", needs=frozenset({"discrete", "hidden"}))
    assert failed(found) == {"manifest-agrees"}
    assert "discrete, hidden in the spec and discrete on the class" in found["manifest-agrees"].reason
