"""The shared assertion catches what it is there for: it is tried on outputs that were made wrong."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmspec.compare.equality import NEAR_TIE, Stock, assert_same

SAMPLED = dict(do_sample=True, top_k=0, max_new_tokens=12)
GREEDY = dict(do_sample=False, max_new_tokens=12)
PROMPT = 14


@pytest.fixture(params=[SAMPLED, GREEDY], ids=["sampled", "greedy"])
def run(request: pytest.FixtureRequest, target: Any, prompts: Callable, theirs: Callable) -> Stock:
    return theirs(target, prompts(3), 0, **request.param)


def chances(run: Stock, position: int) -> torch.Tensor:
    """The scores of every token of `[batch, vocab]` at a step, from the definition of multinomial."""
    if not run.do_sample:
        return run.scores[position]
    torch.manual_seed(run.seed)
    blocks = [torch.empty_like(scores).exponential_(1) for scores in run.scores[: position + 1]]
    return (run.scores[position].softmax(-1) / blocks[-1]).log()


def test_the_stock_run_equals_itself(run: Stock) -> None:
    assert assert_same(run.ids.clone(), run, run.state) == []


@pytest.mark.parametrize("position", [0, 5, 11])
def test_a_wrong_token_is_caught_with_row_position_tokens_and_margin(run: Stock, position: int) -> None:
    scores = chances(run, position)[1]
    assert scores.argmax() == run.ids[1, PROMPT + position], "multinomial is not the race that we think it is"
    second = int(scores.topk(2).indices[1])
    wrong = run.ids.clone()
    wrong[1, PROMPT + position] = second
    right = int(run.ids[1, PROMPT + position])
    margin = float(scores.max() - scores[second])
    assert margin > NEAR_TIE
    with pytest.raises(AssertionError, match=f"row 1, new token {position}: got {second} instead of {right}") as error:
        assert_same(wrong, run)
    assert float(str(error.value).split("margin ")[1].split()[0]) == pytest.approx(margin, rel=0.01)


def tied(run: Stock, position: int, row: int, gap: float) -> tuple[Stock, int]:
    """The same run with the runner-up of one decision lifted to `gap` behind the winner."""
    scores = chances(run, position)[row]
    best, second = scores.topk(2).indices.tolist()
    lifted = [s.clone() for s in run.scores]
    lifted[position][row, second] += scores[best] - scores[second] - gap
    return replace(run, scores=tuple(lifted)), second


def test_a_near_tie_is_reported_and_ends_the_row(run: Stock, capsys: pytest.CaptureFixture[str]) -> None:
    close, second = tied(run, 4, 2, NEAR_TIE / 2)
    other = run.ids.clone()
    other[2, PROMPT + 4] = second
    other[2, PROMPT + 5 :] = 1  # what comes after a near-tie may be anything
    (tie,) = assert_same(other, close, torch.zeros(1))  # a generator state is not compared then
    assert (tie.row, tie.position) == (2, 4) and 0 < tie.margin < NEAR_TIE
    assert "near-tie: row 2, new token 4" in capsys.readouterr().out


def test_twice_the_margin_is_no_near_tie(run: Stock) -> None:
    far, second = tied(run, 4, 2, NEAR_TIE * 2)
    other = run.ids.clone()
    other[2, PROMPT + 4] = second
    with pytest.raises(AssertionError, match="row 2, new token 4"):
        assert_same(other, far)


def test_a_near_tie_excuses_neither_a_third_token_nor_another_row(run: Stock) -> None:
    close, second = tied(run, 4, 2, NEAR_TIE / 2)
    third, elsewhere = run.ids.clone(), run.ids.clone()
    third[2, PROMPT + 4] = chances(run, 4)[2].argmin()
    elsewhere[2, PROMPT + 4] = second
    elsewhere[0, PROMPT + 6] = chances(run, 6)[0].argmin()
    with pytest.raises(AssertionError, match="row 2, new token 4"):
        assert_same(third, close)
    with pytest.raises(AssertionError, match="row 0, new token 6"):
        assert_same(elsewhere, close)


def test_missing_tokens_other_prompts_paddings_and_states_are_caught(run: Stock) -> None:
    with pytest.raises(AssertionError, match="row 0, new token 11: got None"):
        assert_same(run.ids[:, :-1], run)
    with pytest.raises(AssertionError, match="instead of None"):
        assert_same(torch.cat([run.ids, run.ids[:, -1:]], 1), run)
    with pytest.raises(AssertionError, match="prompt changed"):
        assert_same(run.ids.flip(1), run)
    with pytest.raises(AssertionError, match="2 rows instead of 3"):
        assert_same(run.ids[:2], run)
    with pytest.raises(AssertionError, match="another state"):
        assert_same(run.ids, run, torch.zeros_like(run.state))


def test_padding_behind_a_rows_end_is_compared_too(target: Any, prompts: Callable, theirs: Callable) -> None:
    ends = list(range(3, 20))
    run = theirs(target, prompts(3), 1, **SAMPLED, eos_token_id=ends)
    lengths = [next((i for i, t in enumerate(row) if t in ends), 11) + 1 for row in run.ids[:, PROMPT:].tolist()]
    short = lengths.index(min(lengths))
    assert min(lengths) < max(lengths)
    other = run.ids.clone()
    other[short, PROMPT + lengths[short] :] = 99
    with pytest.raises(AssertionError, match="padding differs"):
        assert_same(other, run)
