"""`mmspec.enable` against unmodified transformers: the same tokens, and torch's generator left in the same state."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.compare.equality import assert_same, stock

SAMPLINGS = {
    "temperature": dict(temperature=0.8, top_k=0),
    "top_p": dict(top_p=0.9, top_k=0),
    "top_k": dict(top_k=20),
    "repetition_penalty": dict(repetition_penalty=1.2, top_k=0),
}
ENDS = [17, 40, 41, 63, 77, 90, 91, 92, 101, 120]
MORE = {
    "several ends": dict(eos_token_id=ENDS),
    "one end": dict(eos_token_id=41, pad_token_id=5),
    "min_new_tokens": dict(eos_token_id=ENDS, min_new_tokens=15),
    "no_repeat_ngram_size": dict(no_repeat_ngram_size=2, temperature=0.5),
    "max_length": dict(max_length=33, max_new_tokens=None),
    "num_return_sequences": dict(num_return_sequences=2, eos_token_id=ENDS),
    "min_p and typical_p": dict(min_p=0.05, typical_p=0.9),
    "bad words and suppressed": dict(bad_words_ids=[[30, 31], [50]], suppress_tokens=[7, 8, 9]),
    "another alphabet for every row": dict(
        prefix_allowed_tokens_fn=lambda row, ids: list(range(30 * row, 30 * row + 70))
    ),
    "all at once": dict(temperature=0.9, top_p=0.95, top_k=50, repetition_penalty=1.1, eos_token_id=ENDS),
}


@pytest.mark.thinned
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.compiled("history")
def test_sampled(
    target: Any, prompts: Callable, theirs: Callable, ours: Callable, spec: dict[str, Any], sampling: str, batch: int
) -> None:
    for seed in range(2):
        call = dict(do_sample=True, max_new_tokens=20, eos_token_id=ENDS, **SAMPLINGS[sampling])
        inputs = prompts(batch, seed)
        mine = ours(target, inputs, seed, spec, **call)
        assert_same(mine.ids, theirs(target, inputs, seed, **call), mine.state)


def test_rows_of_the_sampled_calls_do_end_at_different_times(target: Any, prompts: Callable, theirs: Callable) -> None:
    lengths = set()
    for seed in range(3):
        call = dict(do_sample=True, max_new_tokens=20, eos_token_id=ENDS, **SAMPLINGS["temperature"])
        run = theirs(target, prompts(3, seed), seed, **call)
        new = run.ids[:, 14:]
        ended = torch.isin(new, torch.tensor(ENDS))
        lengths |= set(torch.where(ended.any(1), ended.int().argmax(1) + 1, 20).tolist())
    assert len(lengths) >= 4 and 20 in lengths


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", MORE)
@pytest.mark.compiled("history")
def test_other_arguments_of_generate(
    target: Any, prompts: Callable, theirs: Callable, ours: Callable, spec: dict[str, Any], name: str
) -> None:
    for seed in (0, 1):
        call = {"do_sample": True, "max_new_tokens": 24, "top_k": 0, **MORE[name]}
        inputs = prompts(3, seed)
        mine = ours(target, inputs, seed, spec, **call)
        assert_same(mine.ids, theirs(target, inputs, seed, **call), mine.state)


@pytest.mark.parametrize(
    "spec",
    ["good", *(pytest.param(m, marks=pytest.mark.slow) for m in ("plain", "prompt-lookup", "bad"))],
    indirect=True,
)
@pytest.mark.compiled
def test_greedy_for_220_tokens(
    target: Any, prompts: Callable, theirs: Callable, ours: Callable, spec: dict[str, Any]
) -> None:
    inputs, call = prompts(3), dict(do_sample=False, max_new_tokens=220)
    mine = ours(target, inputs, 0, spec, **call)
    run = theirs(target, inputs, 0, **call)
    assert run.ids.shape[1] == 234
    assert_same(mine.ids, run, mine.state)


@pytest.mark.compiled("history")
def test_greedy_with_ends_and_penalties(
    target: Any, prompts: Callable, theirs: Callable, ours: Callable, spec: dict[str, Any]
) -> None:
    for more in (dict(eos_token_id=ENDS), dict(repetition_penalty=1.3, no_repeat_ngram_size=3, eos_token_id=ENDS)):
        inputs, call = prompts(3, 1), dict(do_sample=False, max_new_tokens=40, **more)
        mine = ours(target, inputs, 0, spec, **call)
        assert_same(mine.ids, theirs(target, inputs, 0, **call), mine.state)


@pytest.mark.compiled(inductor=True)
def test_ends_and_padding_from_the_models_own_configuration(
    make_llama: Callable, good: Any, prompts: Callable, ours: Callable
) -> None:
    """Without a padding token transformers pads with the first end."""
    model = make_llama(seed=0, eos_token_id=ENDS, pad_token_id=None)
    inputs, call = prompts(3, 0), dict(do_sample=True, top_k=0, max_new_tokens=24)
    run = stock(model, inputs, 0, **call)
    assert (run.ids[:, -1] == ENDS[0]).any(), "no row is padded; the test tests nothing"
    for spec in ({"method": "plain"}, {"method": "draft-model", "drafter": good}):
        mine = ours(model, inputs, 0, spec, **call)
        assert_same(mine.ids, run, mine.state)


@pytest.mark.compiled
def test_a_second_call_goes_on_where_the_first_left_the_generator(
    target: Any, prompts: Callable, spec: dict[str, Any]
) -> None:
    call = dict(do_sample=True, top_k=0, max_new_tokens=15, eos_token_id=ENDS)
    first, second = (stock(target, prompts(3, i), seed, **call) for i, seed in ((0, 11), (1, None)))
    after = torch.rand(3)
    with mmspec.enable(target, **spec):
        torch.manual_seed(11)
        assert_same(target.generate(**prompts(3, 0), **call), first, torch.get_rng_state())
        assert_same(target.generate(**prompts(3, 1), **call), second, torch.get_rng_state())
    assert torch.equal(torch.rand(3), after)


@pytest.mark.compiled
def test_custom_generate_gives_the_same(target: Any, prompts: Callable, theirs: Callable, spec: dict[str, Any]) -> None:
    for call in (dict(do_sample=True, top_p=0.9, top_k=0, eos_token_id=ENDS), dict(do_sample=False)):
        inputs = prompts(3, 1)
        torch.manual_seed(5)
        ids = target.generate(**inputs, **call, max_new_tokens=20, custom_generate=mmspec.custom_generate(**spec))
        state = torch.get_rng_state()
        assert_same(ids, theirs(target, inputs, 5, **call, max_new_tokens=20), state)


def test_drafters_do_draft(target: Any, good: Any, bad: Any, prompts: Callable, ours: Callable) -> None:
    """Equality of a drafter that proposes nothing, or nothing right, would be no news."""
    call = dict(do_sample=True, top_k=0, max_new_tokens=40)
    inputs = prompts(1)
    plain = ours(target, inputs, 0, {"method": "plain"}, **call).report
    assert (plain.acceptance_length, plain.drafted, plain.rounds) == (1, 0, 39)
    fine = ours(target, inputs, 0, {"method": "draft-model", "drafter": good, "k": 4}, **call).report
    poor = ours(target, inputs, 0, {"method": "draft-model", "drafter": bad, "k": 4}, **call).report
    assert fine.acceptance_length > 2 > poor.acceptance_length >= 1 and poor.acceptance_rate < 0.3
    lookup = ours(target, inputs, 0, {"method": "prompt-lookup"}, do_sample=False, max_new_tokens=200).report
    assert lookup.accepted > 20


def alone(inputs: dict[str, Tensor], row: int) -> dict[str, Tensor]:
    """A row without its padding."""
    kept = inputs["attention_mask"][row].bool()
    return {"input_ids": inputs["input_ids"][row][kept][None], "attention_mask": torch.ones(1, int(kept.sum())).long()}


@pytest.mark.compiled
def test_philox_is_one_output_for_all_drafters_and_ignores_torchs_generator(
    target: Any, prompts: Callable, ours: Callable, good: Any, bad: Any
) -> None:
    call = dict(do_sample=True, temperature=0.8, top_k=0, max_new_tokens=20, eos_token_id=ENDS)
    how = [{"method": "plain"}, {"method": "prompt-lookup"}]
    how += [{"method": "draft-model", "drafter": d, "k": k} for d in (good, bad) for k in (1, 6)]
    for seed in (1, 2):
        runs = [
            ours(target, prompts(3, seed), i, {**s, "seed": seed, "noise": "philox"}, **call) for i, s in enumerate(how)
        ]
        assert all(torch.equal(run.ids, runs[0].ids) for run in runs)
        torch.manual_seed(3)
        assert torch.equal(runs[3].state, torch.get_rng_state())
    other = ours(target, prompts(3, 2), 0, {"method": "plain", "seed": 3, "noise": "philox"}, **call)
    assert not torch.equal(other.ids[:, 14:20], runs[0].ids[:, 14:20])


@pytest.mark.compiled
def test_philox_gives_a_row_the_same_output_in_a_batch_and_alone(
    target: Any, prompts: Callable, ours: Callable, spec: dict[str, Any]
) -> None:
    """Row 0 of a call is folded with 0, so that a row's companions, their lengths and their ends must not matter."""
    call = dict(do_sample=True, top_k=0, max_new_tokens=20)
    for seed in (0, 1):
        together = ours(target, prompts(3, seed), 0, {**spec, "seed": seed}, **call)
        single = ours(target, alone(prompts(3, seed), 0), 0, {**spec, "seed": seed}, **call)
        assert torch.equal(together.ids[0, 14:], single.ids[0, 14:])


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.compiled
def test_lossless_rules_are_greedy_exact(
    target: Any, good: Any, bad: Any, prompts: Callable, theirs: Callable, ours: Callable, rule: str
) -> None:
    inputs, call = prompts(3), dict(do_sample=False, max_new_tokens=40, eos_token_id=ENDS)
    for spec in (
        {"method": "prompt-lookup"},
        {"method": "draft-model", "drafter": good},
        {"method": "draft-model", "drafter": bad},
    ):
        mine = ours(target, inputs, 0, {**spec, "rule": rule}, **call)
        assert mine.report.exactness == "lossless"
        assert_same(mine.ids, theirs(target, inputs, 0, **call), mine.state)


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.compiled
def test_lossless_rules_sample_what_the_warp_allows(
    target: Any, good: Any, prompts: Callable, ours: Callable, rule: str
) -> None:
    """Every token is among the 3 likeliest of the unmodified model; the good drafter is accepted; the seed decides."""
    inputs, call = prompts(3), dict(do_sample=True, top_k=3, max_new_tokens=40)
    how = {"method": "draft-model", "drafter": good, "k": 4, "rule": rule, "seed": 4}
    mine = ours(target, inputs, 0, how, **call)
    mask = torch.cat([inputs["attention_mask"], torch.ones(3, 40).long()], 1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        scores = target(mine.ids, attention_mask=mask, position_ids=positions).logits[:, 13:-1]
    rank = (scores > scores.gather(-1, mine.ids[:, 14:, None])).sum(-1)
    assert (rank < 3).all() and {0, 1, 2} == set(rank.flatten().tolist())
    assert mine.report.acceptance_length > 1.5
    assert torch.equal(ours(target, inputs, 9, how, **call).ids, mine.ids)
    assert not torch.equal(ours(target, inputs, 0, {**how, "seed": 5}, **call).ids, mine.ids)
