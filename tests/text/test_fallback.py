"""`Fallback`: a chain and a tree in one round."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.host import HostDrafterAdapter
from mmspec.core.rules import RecursiveRejection
from mmspec.core.types import Draft
from mmspec.testing.oracles import exact_joint
from mmspec.testing.statistics import assert_follows
from mmspec.testing.toys.history import HistoryTarget
from mmspec_text.drafters.lookup_recycling import LookupRecycling, LookupRecyclingOptions
from mmspec_text.drafters.two_drafters import Fallback
from tests.support.cases import VOCAB, markov_case

TARGET = HistoryTarget.random(5, seed=0)
PROMPT = (torch.tensor([[0, 0, 1], [2, 3, 3], [0, 4, 4]]), torch.tensor([1, 0, 2]))


@dataclass
class Fixed:
    """Always the same draft; remembers a number of its own, which it replaces every round."""

    draft: Callable[[], Draft]
    offers: frozenset[str] = frozenset({"tree"})
    needs: frozenset[str] = frozenset({"discrete"})
    first: int = 0
    asked: int = 0

    def bind(self, target: Any) -> None:
        self.bound = target

    def width(self, k: int) -> int:
        return k + self.first // 100

    def start(self, state: Any, inputs: Any) -> int:
        return self.first

    def propose(self, state: Any, k: int, noise: Any) -> Draft:
        self.asked += 1
        self.memory = state.memory
        return self.draft()

    def observe(self, state: Any, step: Any) -> None:
        state.memory = state.memory + 1


CHAIN = torch.tensor([[1, 2], [3, 4], [0, 1]])
TREE = torch.tensor([[0, 1, 2, 3]] * 3)
PARENTS = [-1, -1, 0, 2]


def both(chain_valid: list[list[bool]], tree: Callable[[], Draft] | None = None) -> tuple[Fallback, Fixed, Fixed]:
    first = Fixed(lambda: Draft.chain(CHAIN, valid=torch.tensor(chain_valid)), frozenset({"chain"}), first=100)
    second = Fixed(tree or (lambda: Draft.tree(TREE, PARENTS)), first=200)
    return Fallback(first, second), first, second


def proposed(fallback: Fallback) -> Draft:
    decoder = Decoder(TARGET, fallback, k=3)
    state = decoder.start(PROMPT, 20)
    draft = fallback.propose(state, 3, None)
    assert state.memory == [100, 200]
    return draft.rooted(state.root, torch.full((3,), 9))


def test_every_row_has_its_own_tree() -> None:
    draft = proposed(both([[True, True], [False, True], [True, False]])[0])  # nothing hangs on the second row's root
    assert draft.index.parent.tolist() == [[-1, 0, 1, 0, 0], [-1, 0, 0, 1, 3], [-1, 0, 1, 0, 0]]
    assert draft.units[:, 1:].tolist() == [[1, 2, 0, 0], [0, 1, 2, 3], [0, 1, 0, 0]]
    expected = [[True, True, False, False], [True] * 4, [True, False, False, False]]
    assert draft.valid[:, 1:].tolist() == expected
    assert draft.index.deepest == 3 and int(draft.index.depth.max()) == 3


def test_a_dynamic_tree_may_be_the_second() -> None:
    parents = torch.tensor([[-1, 0, 1, 2], [-1, -1, 1, -1], [-1, -1, -1, -1]])
    draft = proposed(both([[False, False], [False, False], [True, True]], lambda: Draft.tree(TREE, parents))[0])
    assert draft.index.parent.tolist() == [[-1, 0, 1, 2, 3], [-1, 0, 0, 2, 0], [-1, 0, 1, 0, 0]]


def test_one_speaks_for_all_where_it_can() -> None:
    fallback, _, second = both([[True, True]] * 3)
    assert proposed(fallback).index.is_chain and second.asked == 0
    assert proposed(both([[False, False]] * 3)[0]).index.parent.tolist() == [[-1, 0, 0, 1, 3]]
    nothing = both([[True, True], [False, False], [True, True]], lambda: Draft.empty(torch.zeros(3).long()))[0]
    assert proposed(nothing).index.is_chain


def test_both_see_every_round_with_memories_of_their_own() -> None:
    fallback, first, second = both([[True, True]] * 3)
    assert fallback.width(5) == 7 and fallback.offers == {"tree"} and fallback.needs == {"discrete"}
    output = Decoder(TARGET, fallback, k=3).generate(PROMPT, 20)
    plain = Decoder(TARGET).generate(PROMPT, 20)
    assert all(torch.equal(a, b) for a, b in zip(output.units, plain.units, strict=True))
    assert first.bound is second.bound is TARGET and second.asked == 0
    decoder = Decoder(TARGET, fallback, k=3)
    state = decoder.start(PROMPT, 20)
    for rounds in range(1, 4):
        decoder.advance(state)
        assert state.memory == [100 + rounds, 200 + rounds]


@pytest.mark.filterwarnings("ignore:drafter Fallback failed")
def test_a_drafter_that_fails_leaves_the_memories_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MMSPEC_STRICT", raising=False)
    fallback = both([[False, False]] * 3, lambda: 1 / 0)[0]  # type: ignore[arg-type, return-value]
    decoder = Decoder(TARGET, fallback, k=3)
    state = decoder.start(PROMPT, 20)
    decoder.advance(state)
    assert state.memory == [101, 201] and state.report.faults == 1


def test_drafts_with_a_distribution_are_refused() -> None:
    for pair in ((DraftModel(TARGET), both([])[1]), (both([])[1], DraftModel(TARGET))):
        with pytest.raises(ValueError, match="DraftModel draws its drafts from a distribution"):
            Fallback(*pair)


class Sometimes:
    """A host drafter with a draft for every other row."""

    def propose(self, tokens: list[list[int]], k: int) -> list[list[int]]:
        return [row[-2:] if len(row) % 2 else [] for row in tokens]


def test_any_mixture_leaves_the_plain_output() -> None:
    plain = Decoder(TARGET).generate(PROMPT, 60, seed=2).units
    recycling = LookupRecycling(LookupRecyclingOptions(nodes=7)).second
    report = None
    for drafter in (
        Fallback(HostDrafterAdapter(Sometimes()), recycling),
        Fallback(recycling, HostDrafterAdapter(Sometimes())),
        Fallback(Fallback(HostDrafterAdapter(Sometimes()), recycling), recycling),
    ):
        output = Decoder(TARGET, drafter, k=3).generate(PROMPT, 60, seed=2)
        assert all(torch.equal(a, b) for a, b in zip(output.units, plain, strict=True))
        report = report or output.report
    assert report is not None and report.acceptance_length > 1.5 and report.faults == 0


def test_recursive_rejection_keeps_the_distribution_of_mixed_drafts() -> None:
    case = markov_case()
    joint = exact_joint(case.next_distribution, 4, VOCAB)
    lengths = []

    def sample(seed: int, rows: int) -> torch.Tensor:
        drafter = LookupRecycling(LookupRecyclingOptions(nodes=3, width=2, max_ngram=2, min_ngram=1))
        output = Decoder(case.target, drafter, RecursiveRejection(), k=2).generate(case.prompt(rows), 4, seed=seed)
        lengths.append(output.report.acceptance_length)
        return torch.stack(output.units)

    assert_follows(sample, joint)
    assert lengths[-1] > 1.3


def test_the_lookups_options_are_checked() -> None:
    with pytest.raises(ValueError, match=r"min_ngram \(5\) must not exceed max_ngram \(4\)"):
        LookupRecyclingOptions(min_ngram=5)
    lookup = LookupRecycling(LookupRecyclingOptions(max_ngram=6, min_ngram=5, nodes=9))
    assert (lookup.first.options.max_ngram, lookup.first.options.min_ngram, lookup.second.options.nodes) == (6, 5, 9)
