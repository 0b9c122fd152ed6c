"""Prompts that are empty, too long, or not the model's; the end of the context; scores that are no numbers."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.compare.equality import assert_same, stock
from mmspec.core.round import Eager

CALL = dict(do_sample=True, top_k=0, max_new_tokens=6)


def refused(model: Any, says: str, ids: Any, mask: Any = None) -> None:
    inputs = {"input_ids": torch.tensor(ids).long()}
    inputs |= {} if mask is None else {"attention_mask": torch.tensor(mask)}
    with mmspec.enable(model, "plain"), pytest.raises(ValueError, match=says):
        model.generate(**inputs, **CALL)


def test_empty_prompts(target: Any) -> None:
    refused(target, "empty prompt cannot be continued", [[]])
    refused(target, "empty prompt cannot be continued", [[0, 0], [3, 4]], [[0, 0], [1, 1]])


def test_prompts_longer_than_the_context(make_llama: Callable) -> None:
    model = make_llama(max_position_embeddings=16)
    refused(model, "the prompt has 17 tokens and the model's context is 16; shorten it", [[5] * 17])
    with mmspec.enable(model, "plain"):  # padding is no part of a prompt
        ids = torch.tensor([[0] * 5 + [7] * 14])
        assert model.generate(ids, attention_mask=(ids > 0).long(), **CALL).shape == (1, 25)


def test_ids_outside_the_vocabulary(target: Any) -> None:
    refused(target, "token id 131 is outside the model's vocabulary of 131", [[4, 131, 5]])
    refused(target, "token id -1 is outside the model's vocabulary", [[4, -1, 5]], [[1, 1, 1]])


def test_padding_on_the_right(target: Any) -> None:
    refused(target, "padding on the right; pad on the left", [[4, 5, 6, 0], [4, 5, 6, 7]], [[1, 1, 1, 0], [1] * 4])


@pytest.fixture
def drafts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """Every round's state (lengths as they were) and draft."""
    seen, verify = [], Eager.verify

    def watching(self: Eager, state: Any, proposed: Any) -> Any:
        pending = verify(self, state, proposed)
        seen.append((state.known - state.pads, pending.draft))
        return pending

    monkeypatch.setattr(Eager, "verify", watching)
    return seen


@pytest.mark.parametrize("batch", [1, 3])
def test_drafts_end_at_the_context_and_the_text_goes_on_as_stock(
    make_llama: Callable, prompts: Callable, ours: Callable, drafts: list, batch: int
) -> None:
    """Rotary positions have no end, so that transformers goes on; we draft no node where no position was trained."""
    model, deepest, beyond = make_llama(max_position_embeddings=20), 0, 0
    inputs, call = prompts(batch), dict(do_sample=True, top_k=0, max_new_tokens=16)
    run = stock(model, inputs, 0, **call)
    for spec in ({"drafter": make_llama(), "k": 6}, {"method": "prompt-lookup"}, {"drafter": Repeat(), "k": 6}):
        mine = ours(model, inputs, 0, spec, **call)
        assert_same(mine.ids, run, mine.state)
    for length, draft in drafts:
        position = (length - 1)[:, None] + draft.index.depth  # of the root, and of what hangs on it
        drafted = draft.valid[:, 1:]
        assert not (drafted & (position[:, 1:] >= 20)).any()
        if draft.nodes > 1:
            deepest = max(deepest, int(torch.where(drafted, position[:, 1:], -1).max()))
        beyond += int((position[:, 0] >= 20).any())
        if bool((length >= 20).all()):
            assert draft.nodes == 1, "nodes that no row may use were passed through the model"
    assert deepest == 19 and beyond > 0


class Repeat:
    """Drafts the last token again and again, as much as it may."""

    def propose(self, tokens: list[list[int]], k: int) -> list[list[int]]:
        return [[row[-1]] * k for row in tokens]


def test_weights_that_are_no_numbers(make_llama: Callable, prompts: Callable) -> None:
    """Broken before `enable`, they are refused by the self-check; behind its back, by the call."""
    model = make_llama()
    with mmspec.enable(model, "plain"):
        model.model.layers[0].mlp.up_proj.weight.data[3, 4] = float("nan")
        for sample in (True, False):
            with pytest.raises(ValueError, match=r"row 0: .* scores of new unit 0 are NaN"):
                model.generate(**prompts(1), do_sample=sample, max_new_tokens=5)
    with pytest.raises(ValueError, match="its own logits are NaN or infinite"):
        mmspec.enable(copy.deepcopy(model), "plain")


@pytest.mark.parametrize("sample", [True, False])
def test_the_row_of_a_bad_score_is_named(make_llama: Callable, prompts: Callable, sample: bool) -> None:
    """One token's embedding is broken, and only row 2 has it in its prompt."""
    model, inputs = make_llama(), prompts(3)
    only = next(i for i in inputs["input_ids"][2].tolist() if i and i not in inputs["input_ids"][:2].tolist())
    with mmspec.enable(model, "plain"):
        model.model.embed_tokens.weight.data[only] = float("nan")
        with pytest.raises(ValueError, match=r"row 2: .* new unit 0 are NaN or all -inf"):
            model.generate(**inputs, do_sample=sample, max_new_tokens=5)


class Spoil:
    """A logits processor that spoils what follows a history of one length, in one row."""

    speculative = "history"

    def __init__(self, length: int, row: int, value: float) -> None:
        self.length, self.row, self.value = length, row, value

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        spoiled = scores.clone()
        if input_ids.shape[1] == self.length:
            spoiled[self.row] = self.value
        return spoiled


@pytest.mark.thinned
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize("sample", [True, False])
def test_the_position_of_a_bad_score_is_named(
    target: Any, prompts: Callable, spec: dict, value: float, sample: bool
) -> None:
    with mmspec.enable(target, **spec), pytest.raises(ValueError, match=r"row 1: .* new unit 9 are NaN or all -inf"):
        target.generate(**prompts(3), do_sample=sample, max_new_tokens=20, logits_processor=[Spoil(14 + 9, 1, value)])


def test_a_bad_score_that_nobody_needs_harms_no_one(target: Any, prompts: Callable, theirs: Callable) -> None:
    """The unit after the last one is scored by no one, or scored and not wanted."""
    run = theirs(target, prompts(3), 0, **CALL)
    with mmspec.enable(target, drafter=Repeat(), k=6):
        torch.manual_seed(0)
        ids = target.generate(**prompts(3), **CALL, logits_processor=[Spoil(14 + 6, 1, float("nan"))])
    assert_same(ids, run, torch.get_rng_state())


@pytest.mark.parametrize("at_once", [True, False])
def test_a_batch_that_shrinks_to_nothing(
    target: Any, prompts: Callable, theirs: Callable, ours: Callable, spec: dict, at_once: bool
) -> None:
    """All rows end with their first token, or one after the other before the limit."""
    texts = theirs(target, prompts(3), 0, do_sample=False, max_new_tokens=9).ids[:, -9:]
    ends = sorted({int(row[0 if at_once else 7 - b]) for b, row in enumerate(texts)})
    call = dict(do_sample=False, max_new_tokens=40, eos_token_id=ends)
    run = theirs(target, prompts(3), 0, **call)
    mine = ours(target, prompts(3), 0, spec, **call)
    assert_same(mine.ids, run, mine.state)
    assert mine.ids.shape[1] < 14 + 40 and not mine.report.faults
    assert (mine.report.rounds == 0) == at_once
