"""The law of captured rounds: the joint of units of successive rounds is the target's, under every lossless rule.

Numbers that are used again in the next round leave each round's own distribution right; only a joint shows them.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.initialisations import RandomUnit
from mmspec.core.drafters.jacobi import Jacobi
from mmspec.core.drafters.shapes import Beam, Branching
from mmspec.core.philox import PhiloxSource
from mmspec.core.round import DrawnSource
from mmspec.core.rules import Block, RecursiveRejection, Rejection
from mmspec.testing.oracles import exact_joint
from mmspec.testing.statistics import LEVEL, joint_p_value
from tests.support.laws import assert_follows
from tests.support.toys.captured import FixedHistory

ROWS, VOCAB, LENGTH, PROMPT = 200_000, 3, 5, [0, 1]
TABLE = FixedHistory.random(VOCAB, seed=3).table
PAIRS: dict[str, tuple[Any, Any]] = {
    "rejection": (Rejection, lambda small: DraftModel(small)),
    "rejection of a window": (Rejection, lambda small: Jacobi(RandomUnit(VOCAB))),
    "block": (Block, lambda small: DraftModel(small)),
    "recursive-rejection": (RecursiveRejection, lambda small: DraftModel(small, Branching((2, 1)))),
    "recursive-rejection of a beam": (RecursiveRejection, lambda small: DraftModel(small, Beam(2))),
}
"""Rules and drafters: chains, a window that mixes drawn units and point masses, one tree for all rows and one a row."""


def decoder_of(name: str, dtype: torch.dtype) -> Decoder:
    target = FixedHistory(TABLE.to(dtype))
    rule, drafter = PAIRS[name]
    return Decoder(target, drafter(target.near(4, 0.6)), rule(), k=2, shape="one", compile=True)


def decoded(decoder: Decoder, seed: int, rows: int = ROWS) -> Tensor:
    """Units `[rows, length]` of at least two captured rounds, after the one that the prefill gives."""
    *_, state = decoder.rounds(torch.tensor([PROMPT]).expand(rows, -1), LENGTH, seed=seed)
    assert state.report.compiled and state.report.rounds >= 2
    return state.history[:, state.prompt_length : state.prompt_length + LENGTH].clone()


def joint(dtype: torch.dtype) -> Tensor:
    target = FixedHistory(TABLE.to(dtype))
    return exact_joint(target.next_distribution(PROMPT, lambda logits: logits.float()), LENGTH, VOCAB)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_the_joint_of_several_rounds_is_the_targets(name: str, dtype: torch.dtype) -> None:
    decoder = decoder_of(name, dtype)
    assert_follows(lambda seed, rows: decoded(decoder, seed, rows), joint(dtype))


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == "rejection" else pytest.mark.slow) for n in PAIRS])
def test_numbers_of_the_last_round_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant computes its numbers from the key alone, so that every round has those of the first."""

    def again(self: DrawnSource, emitted: Tensor, first: int, count: int) -> Any:
        assert self.key is not None
        return PhiloxSource(self.key).fresh(torch.zeros_like(emitted), first, count)

    monkeypatch.setattr(DrawnSource, "fresh", again)
    assert joint_p_value(decoded(decoder_of(name, torch.float32), 0, ROWS // 20), joint(torch.float32)) < LEVEL


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_the_joint_of_compiled_rounds(name: str, inductor: None) -> None:
    decoder = decoder_of(name, torch.bfloat16)
    assert_follows(lambda seed, rows: decoded(decoder, seed, rows), joint(torch.bfloat16))
