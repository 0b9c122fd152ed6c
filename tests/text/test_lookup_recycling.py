"""`lookup-recycling`: the tree of two drafters without a model, which `auto` takes where rounds are recorded."""

from typing import Any

import pytest
import torch

import mmspec
from mmspec.core.compile import captured, rounds
from mmspec.core.decoder import Decoder
from mmspec.core.rules import RecursiveRejection
from mmspec.core.types import Draft
from mmspec.testing import tiny_models
from mmspec.testing.oracles import exact_joint
from mmspec.testing.toys.history import HistoryTarget
from mmspec_text.drafters.lookup_recycling import LookupRecycling, LookupRecyclingOptions
from tests.support.cases import VOCAB, markov_case
from tests.support.laws import assert_follows

TARGET = HistoryTarget.random(5, seed=0)
PROMPT = (torch.tensor([[0, 0, 1], [2, 3, 3], [0, 4, 4]]), torch.tensor([1, 0, 2]))


def test_copies_come_first_and_recycled_tokens_fill_the_tree() -> None:
    drafter = LookupRecycling(LookupRecyclingOptions(nodes=6, min_ngram=1))
    assert drafter.offers == {"tree"} and drafter.needs == {"discrete"}
    text = torch.tensor([[1, 2, 3, 4, 0, 1, 2]])
    state = Decoder(TARGET, drafter, k=3).start((text, torch.zeros(1, dtype=torch.int64)), 20)
    draft = drafter.propose(state, 3, None)  # type: ignore[arg-type]
    assert draft.score is not None and draft.units.shape[1] <= 6
    copied, recycled = int((draft.score == 0).sum()), int((draft.score < 0).sum())
    assert copied == 3 and recycled, "who repeats the text is believed"


def test_a_drafter_that_fails_leaves_the_memories_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MMSPEC_STRICT", raising=False)
    drafter = LookupRecycling()

    def fail(*_: Any) -> Draft:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(drafter.second, "propose", fail)
    decoder = Decoder(TARGET, drafter, k=3)
    state = decoder.start(PROMPT, 20)
    with pytest.warns(UserWarning, match="LookupRecycling failed"):
        decoder.advance(state)
    assert len(state.memory) == 3 and state.report.faults == 1


def test_the_plain_output() -> None:
    plain = Decoder(TARGET).generate(PROMPT, 60, seed=2).units
    output = Decoder(TARGET, LookupRecycling(LookupRecyclingOptions(nodes=7)), k=3).generate(PROMPT, 60, seed=2)
    assert all(torch.equal(a, b) for a, b in zip(output.units, plain, strict=True))
    assert output.report.acceptance_length > 1.5 and output.report.faults == 0


def test_recursive_rejection_keeps_the_distribution() -> None:
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


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The CPU in the place of a GPU: rounds are recorded, and read late. What rounds launched and read."""
    happened = list[str]()
    monkeypatch.setattr(captured, "RECORDING", ("cpu",))
    monkeypatch.setattr(rounds, "READ_AT_ONCE", ())
    launch, read = rounds.CapturedRound.launch, captured.Counts.read
    placed = rounds.CapturedRound.__call__
    monkeypatch.setattr(rounds.CapturedRound, "launch", lambda *a: (happened.append("launch"), launch(*a))[1])
    monkeypatch.setattr(rounds.CapturedRound, "__call__", lambda *a: (happened.append("outside"), placed(*a))[1])
    monkeypatch.setattr(captured.Counts, "read", lambda *a: (happened.append("read"), read(*a))[1])
    return happened


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_auto_makes_a_round_one_launch_where_rounds_are_recorded(device: list[str], temperature: float) -> None:
    """No round waits for the host, drafts there, or follows a clock; there is one graph."""
    model = tiny_models.llama()
    law: dict[str, Any] = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
    prompt = torch.tensor([[1, 2, 3, 4, 1, 2, 3, 4, 1, 2]])
    torch.manual_seed(0)
    expected = model.generate(prompt, max_new_tokens=40, **law)
    with mmspec.enable(model, drafter="lookup-recycling", k=10, nodes=32) as handle:
        torch.manual_seed(0)
        assert torch.equal(model.generate(prompt, max_new_tokens=40, **law), expected)
        report = handle.report
    assert report.recorded and report.acceptance_length > 1.2
    assert device.count("outside") == 0 and device.count("launch") - report.rounds in (0, 1)
    assert device.count("read") == report.rounds


def test_a_policy_that_measures_is_said_to_only_cost_in_recorded_rounds(device: list[str]) -> None:
    model = tiny_models.llama()
    prompt = torch.tensor([[1, 2, 3, 4, 1, 2]])
    expected = model.generate(prompt, max_new_tokens=12, do_sample=False)
    with (
        mmspec.enable(model, "prompt-lookup", policy="goodput"),
        pytest.warns(UserWarning, match="with policy='fixed'"),
    ):
        assert torch.equal(model.generate(prompt, max_new_tokens=12, do_sample=False), expected)
