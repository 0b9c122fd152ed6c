"""`jacobi-text`: Jacobi decoding written out without a cache, and unmodified transformers' text."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mmspec.compare.equality import assert_same
from mmspec.core.decoder import Decoder
from mmspec.core.rules import Match
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget
from mmspec_text.drafters.jacobi_text import JacobiText, JacobiTextOptions
from tests.support.draft_rounds import played

WINDOW = 4


class Written:
    """Algorithm 1 of arXiv 2305.10427 on one row, greedily: a pass decodes all guesses at once."""

    def __init__(self, model: Any, init: str) -> None:
        self.model, self.init, self.guesses = model, init, list[int]()

    def draft(self, known: list[int]) -> list[int]:
        """The guesses, and what fills the window."""
        missing = WINDOW - len(self.guesses)
        fill = [(self.guesses or known[-1:])[-1]] * WINDOW
        if self.init == "lookup":
            fill = followed(known) or fill
        return self.guesses + fill[WINDOW - missing :]

    @torch.no_grad()
    def one_pass(self, known: list[int], draft: list[int]) -> int:
        """Decode behind every guess; the guesses that came true, and what they leave for the next pass."""
        scores = self.model(input_ids=torch.tensor([known + draft])).logits[0, len(known) - 1 :]
        new: list[int] = scores.argmax(-1).tolist()
        right = 0
        while right < len(draft) and draft[right] == new[right]:
            right += 1
        self.guesses = new[right + 1 :]
        return right + 1


def followed(known: list[int]) -> list[int]:
    """The units that followed the latest occurrence of the last three tokens, or else two, going on periodically."""
    for n in (3, 2):
        for end in range(len(known) - 1, n - 1, -1):
            if known[end - n : end] == known[-n:]:
                return [known[end + i % (len(known) - end)] for i in range(WINDOW)]
    return []


@pytest.mark.parametrize("init", ["last", "lookup"])
def test_drafts_of_successive_rounds(target: Any, prompts: Callable, init: Any) -> None:
    """Rows of several lengths; the text repeats itself, so that some guesses come true."""
    drafter = JacobiText(JacobiTextOptions(init=init))
    decoder = Decoder(TransformersTarget(target), drafter, Match(), k=WINDOW)
    recorded, accepted = played(decoder, prompts(3), Warp(sample=False), rounds=9)
    assert max(accepted) > 0, "no guess came true, so nothing was tested"
    rows, before = [Written(target, init) for _ in range(3)], [0, 0, 0]
    for number, (known, done, draft) in enumerate(recorded):
        for row, written in enumerate(rows):
            text = known[row].tolist()
            expected = written.draft(text)
            assert draft.units[row].tolist() == expected and not done[row], (number, row)
            assert number == 0 or len(text) == before[row]
            before[row] = len(text) + written.one_pass(text, expected)


@pytest.mark.parametrize("init", ["lookup", pytest.param("last", marks=pytest.mark.slow), "random"])
@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.compiled
def test_texts_are_those_of_generate(
    target: Any, prompts: Callable, theirs: Callable, ours: Callable, init: str, batch: int, sampled: bool
) -> None:
    call = dict(max_new_tokens=24, do_sample=sampled, top_k=0, eos_token_id=[17, 40, 41])
    run = theirs(target, prompts(batch), 3, **call)
    out = ours(target, prompts(batch), 3, {"method": "jacobi-text", "k": 6, "init": init}, **call)
    assert_same(out.ids, run, out.state)
    assert out.report.drafted > 0
