"""Captured rounds beside the eager loop: both decode the same call, round by round."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.compile import launch as compiler
from mmspec.core.compile.captured import Captured
from mmspec.core.compile.pool import NAME
from mmspec.core.compile.rounds import CapturedRound
from mmspec.core.decoder import Decoder
from mmspec.core.state import State


@pytest.fixture(autouse=True)
def _traced_alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rounds are traced and run by torch itself, unless a test is about the compiler, which starts from nothing."""
    compiled = "inductor" in request.fixturenames
    if compiled:
        torch._dynamo.reset()
    else:
        monkeypatch.setattr(compiler, "BACKEND", "eager")
    yield
    if compiled:
        torch._dynamo.reset()


@pytest.fixture(autouse=True, scope="module")
def _traced_once() -> Iterator[None]:
    """A module's tests share what was traced, as calls of a program do."""
    yield
    torch._dynamo.reset()


@pytest.fixture
def inductor() -> None:
    """Rounds are really compiled."""


def forget(model: Any) -> None:
    """Drop what was captured of a model's calls: for tests of what is captured when, and of wrong rounds."""
    vars(model).pop(NAME, None)


def kept_for(model: Any) -> list[CapturedRound]:
    """The captured rounds that a model keeps."""
    pool = vars(model).get(NAME)
    return [] if pool is None else pool.rounds


def rounds_of(decoder: Decoder) -> list[CapturedRound]:
    """The captured rounds that a decoder may use."""
    return decoder.captures.pool.rounds


def rows_of(state: State) -> list[Tensor]:
    """The tensors that a round changes, without the room behind a row's units."""
    live = state.live
    history = [live.history[row, : state.prompt_length + n] for row, n in enumerate(state.host.emitted)]
    return [*history, live.emitted, live.root, live.done, live.nonfinite]


def lockstep(eager: Decoder, captured: Decoder, inputs: Any, limit: int, **options: Any) -> int:
    """Decode one call with both, and compare rows, drafts and verdicts after every round: the number of rounds."""
    rounds = 0
    both = zip(eager.rounds(inputs, limit, **options), captured.rounds(inputs, limit, **options), strict=True)
    for one, other in both:
        for expected, found in zip(rows_of(one), rows_of(other), strict=True):
            assert torch.equal(expected, found)
        if rounds:
            assert one.step is not None and other.step is not None
            assert other.report.compiled or other.report.recorded
            assert torch.equal(one.step.count, other.step.count)
            assert torch.equal(one.step.verdict.length, other.step.verdict.length)
            nodes = one.step.draft.nodes
            valid = one.step.draft.valid
            assert torch.equal(valid, other.step.draft.valid[:, :nodes])
            assert torch.equal(one.step.draft.units[valid], other.step.draft.units[:, :nodes][valid])
        rounds += 1
    assert one.report.accepted == other.report.accepted and one.report.drafted == other.report.drafted
    assert str(one.report.bias) == str(other.report.bias), "to the digits that reports print"
    assert one.report.emitted == other.report.emitted and isinstance(other.player, Captured)
    return rounds
