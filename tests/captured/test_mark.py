"""The mark `compiled` itself: a call that is not captured is seen, unless mmspec gave a reason that the mark names."""

import pytest
import torch

from mmspec.core.compile.captured import Captures
from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.report import Report
from mmspec.testing.toys.history import HistoryTarget
from tests.support.compiled_rounds import Again, compiled_rounds
from tests.support.toys.captured import FixedHistory

TABLE = HistoryTarget.random(3, seed=3).table


def decoded(kind: type[HistoryTarget], **how: str) -> Report:
    target = kind(TABLE)
    decoder = Decoder(target, DraftModel(target.near(4, 0.6)), k=2, **how)  # type: ignore[arg-type]
    return decoder.generate(torch.tensor([[0, 1]]), 6).report


def test_captured_rounds_pass() -> None:
    with compiled_rounds(Again()):
        assert decoded(FixedHistory).compiled
    assert not decoded(FixedHistory).compiled, "decoders are left as they were"


def test_a_reason_must_be_named() -> None:
    said = "on HistoryTarget ran eagerly, and said 'rounds are not compiled: "
    with pytest.raises(AssertionError, match=said), compiled_rounds(Again(("history",))):
        decoded(HistoryTarget)
    with compiled_rounds(Again(("no shape",))):
        decoded(HistoryTarget)


def test_silence_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Captures, "round_for", lambda *given: None)
    said = "on FixedHistory ran eagerly, and said 'nothing'"
    with pytest.raises(AssertionError, match=said), compiled_rounds(Again(("history", "no shape", "no pass"))):
        decoded(FixedHistory)


def test_a_block_without_a_call_that_could_compile_proves_nothing() -> None:
    with pytest.raises(AssertionError, match="no decoder ran"), compiled_rounds(Again()):
        decoded(FixedHistory, shape="any")
