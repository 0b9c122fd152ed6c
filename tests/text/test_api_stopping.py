"""Stopping criteria: each sees what it sees in transformers, once per step, and rows end where they end there."""

import copy
import importlib
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    MaxLengthCriteria,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
    TextStreamer,
)
from transformers.generation.stopping_criteria import ConfidenceCriteria

import mmspec
from mmspec.compare.equality import Stock, assert_same, stock

ENDS = [17, 40, 41, 63, 77]
SAMPLED = dict(do_sample=True, top_k=0, max_new_tokens=20)


class Watching(StoppingCriteria):
    """Stops rows at ids that a number divides, and records its inputs."""

    def __init__(self, divisor: int) -> None:
        self.divisor = divisor
        self.shown: list[list[list[int]]] = []
        self.scores: list[Any] = []

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        self.shown.append(input_ids.tolist())
        self.scores.append(scores)
        return input_ids[:, -1] % self.divisor == 0


def new_tokens(run: Stock) -> Tensor:
    return run.ids[:, -len(run.scores) :]


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of letters and pairs of letters with ids 0 … 130, the tiny model's vocabulary."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    letters = "abcdefghijklmnopqrstuvwxyz"
    pairs = ["".join(pair) for pair in itertools.product(letters, letters[:6])]
    bpe.train_from_iterator(pairs, trainers.BpeTrainer(vocab_size=131, show_progress=False))
    assert bpe.get_vocab_size() == 131
    return PreTrainedTokenizerFast(tokenizer_object=bpe)


@pytest.mark.thinned
@pytest.mark.parametrize("ends", [ENDS, None], ids=["ends", "no end"])
@pytest.mark.parametrize("divisor", [5, 13])
@pytest.mark.compiled
def test_a_criterion_is_asked_what_it_is_asked_in_transformers(
    target: Any, prompts: Callable, ours: Callable, spec: dict[str, Any], divisor: int, ends: Any
) -> None:
    """Without an end token, rows that stopped go on until all have, as in transformers."""
    for seed in range(2):
        call = {**SAMPLED, "eos_token_id": ends}
        theirs, mine = Watching(divisor), Watching(divisor)
        run = stock(target, prompts(3, seed), seed, **call, stopping_criteria=[theirs])
        out = ours(target, prompts(3, seed), seed, spec, **call, stopping_criteria=[mine])
        assert_same(out.ids, run, out.state)
        assert mine.shown == theirs.shown and set(mine.scores) == {None}


def test_rows_of_these_calls_do_stop_early_and_apart(target: Any, prompts: Callable) -> None:
    places = []
    for seed in range(2):
        new = new_tokens(stock(target, prompts(3, seed), seed, **SAMPLED, eos_token_id=None)).tolist()
        places.append([min((i for i, t in enumerate(row) if t % 5 == 0 or t in ENDS), default=99) for row in new])
    assert all(len(set(first)) > 1 for first in places) and max(map(max, places)) < 20


@pytest.mark.parametrize("batch", [1, 3])
def test_scores_are_shown_where_they_are_kept(target: Any, good: Any, prompts: Callable, batch: int) -> None:
    call = {**SAMPLED, "eos_token_id": ENDS, "return_dict_in_generate": True, "output_scores": True}
    theirs, mine = Watching(13), Watching(13)
    stock(target, prompts(batch), 0, **SAMPLED, eos_token_id=ENDS, stopping_criteria=[theirs])
    with mmspec.enable(target, drafter=good, k=4):
        torch.manual_seed(0)
        target.generate(**prompts(batch), **call, stopping_criteria=[mine])
    assert [len(s) for s in mine.scores] == [len(s) for s in theirs.scores] == list(range(1, len(mine.scores) + 1))
    open_rows = torch.ones(batch, dtype=torch.bool)
    for ours, stocks, ids in zip(mine.scores[-1], theirs.scores[-1], mine.shown, strict=True):
        assert torch.allclose(ours[open_rows], stocks[open_rows], atol=1e-4)
        last = torch.tensor(ids)[:, -1]
        open_rows &= ~(torch.isin(last, torch.tensor(ENDS)) | (last % 13 == 0))


@pytest.mark.compiled
def test_confidence(target: Any, good: Any, prompts: Callable) -> None:
    """A criterion that reads the first row only and answers for all."""
    call = {**SAMPLED, "stopping_criteria": [ConfidenceCriteria(0.02)]}
    run = stock(target, prompts(3, 1), 4, **call)
    assert 1 < len(run.scores) < 20
    with mmspec.enable(target, drafter=good, k=4):
        torch.manual_seed(4)
        out = target.generate(**prompts(3, 1), **call, return_dict_in_generate=True, output_scores=True)
    assert_same(out.sequences, run, torch.get_rng_state())


@pytest.mark.thinned(1)
@pytest.mark.parametrize("limit", [0.5, 6.5, 99.0])
@pytest.mark.compiled
def test_max_time(
    target: Any, prompts: Callable, ours: Callable, spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch, limit: float
) -> None:
    """The time limit, by a clock that advances by one whenever it is read; all rows end together."""

    def start() -> None:
        ticks = itertools.count()
        clock = SimpleNamespace(time=lambda: float(next(ticks)))
        monkeypatch.setattr("transformers.generation.stopping_criteria.time", clock)

    start()
    run = stock(target, prompts(3), 0, **SAMPLED, max_time=limit)
    start()
    mine = ours(target, prompts(3), 0, spec, **SAMPLED, max_time=limit)
    assert len(run.scores) == {0.5: 1, 6.5: 7, 99.0: 20}[limit]
    assert_same(mine.ids, run, mine.state)


@pytest.mark.compiled
def test_a_users_own_length_and_end_take_the_place_of_the_configurations(
    target: Any, prompts: Callable, ours: Callable, spec: dict[str, Any]
) -> None:
    for length in (27, 46):
        criteria = [MaxLengthCriteria(length), EosTokenCriteria(ENDS)]
        run = stock(target, prompts(3), 3, **SAMPLED, eos_token_id=5, pad_token_id=0, stopping_criteria=criteria)
        run = Stock(**{**vars(run), "ends": tuple(ENDS)})
        mine = ours(target, prompts(3), 3, spec, **SAMPLED, eos_token_id=5, pad_token_id=0, stopping_criteria=criteria)
        assert_same(mine.ids, run, mine.state)
        assert mine.ids.shape[1] <= length


def test_a_length_below_the_prompt_is_noticed_after_the_first_token(
    target: Any, prompts: Callable, ours: Callable
) -> None:
    criteria = [MaxLengthCriteria(3)]
    run = stock(target, prompts(1), 0, **SAMPLED, stopping_criteria=criteria)
    mine = ours(target, prompts(1), 0, {"method": "prompt-lookup"}, **SAMPLED, stopping_criteria=criteria)
    assert mine.ids.shape[1] == 15
    assert_same(mine.ids, run, mine.state)


def strings_in(tokenizer: Any, ids: Tensor) -> list[str]:
    """Two letters from the middle of every row: a stop string may begin and end inside a token."""
    texts = [tokenizer.decode(row) for row in ids]
    return [text[i : i + 2] for text, i in zip(texts, (9, 14, 20), strict=False)]


@pytest.mark.thinned(1)
@pytest.mark.parametrize("ends", [ENDS, None], ids=["ends", "no end"])
@pytest.mark.compiled
def test_stop_strings(
    target: Any, prompts: Callable, ours: Callable, spec: dict[str, Any], tokenizer: Any, ends: Any
) -> None:
    call = {**SAMPLED, "eos_token_id": ends, "max_new_tokens": 30}
    for batch in (1, 3):
        strings = strings_in(
            tokenizer, new_tokens(stock(target, prompts(batch, 2), 2, **{**call, "eos_token_id": None}))
        )
        run = stock(target, prompts(batch, 2), 2, **call, stop_strings=strings, tokenizer=tokenizer)
        assert len(run.scores) < 30
        mine = ours(target, prompts(batch, 2), 2, spec, **call, stop_strings=strings, tokenizer=tokenizer)
        assert_same(mine.ids, run, mine.state)


@pytest.fixture
def stopping(target: Any, prompts: Callable, tokenizer: Any) -> tuple[str, Stock]:
    """A stop string of the first row alone, and the output of transformers with it."""
    call = {**SAMPLED, "do_sample": False}
    string = strings_in(tokenizer, new_tokens(stock(target, prompts(1), 0, **call)))[0]
    run = stock(target, prompts(1), 0, **call, stop_strings=[string], tokenizer=tokenizer)
    assert len(run.scores) < 20
    return string, run


@pytest.mark.compiled
def test_stop_strings_of_configurations(target: Any, prompts: Callable, tokenizer: Any, stopping: Any) -> None:
    string, run = stopping
    config = GenerationConfig(max_new_tokens=20, stop_strings=[string], pad_token_id=0)
    kept = copy.deepcopy(target.generation_config)
    try:
        with mmspec.enable(target, "prompt-lookup"):
            assert_same(target.generate(**prompts(1), generation_config=config, tokenizer=tokenizer), run)
            assert_same(target.generate(prompts(1)["input_ids"], config, tokenizer=tokenizer), run)  # by position
            assert config.stop_strings == [string]
            none = target.generate(
                **prompts(1), generation_config=config, stop_strings=None
            )  # an argument takes precedence
            assert none.shape[1] == 34
            with pytest.raises(ValueError, match="needs the model's tokenizer="):
                target.generate(**prompts(1), generation_config=config)
            target.generation_config.stop_strings = string
            assert_same(target.generate(**prompts(1), max_new_tokens=20, tokenizer=tokenizer), run)
            assert_same(target.generate(**prompts(1), generation_config=config, tokenizer=tokenizer), run)
            assert target.generation_config.stop_strings == string
    finally:
        target.generation_config = kept


@pytest.mark.compiled
def test_stop_strings_of_custom_generate(target: Any, prompts: Callable, tokenizer: Any, stopping: Any) -> None:
    string, run = stopping
    call = dict(max_new_tokens=20, stop_strings=string)
    decoding = mmspec.custom_generate("prompt-lookup", tokenizer=tokenizer)
    assert_same(target.generate(**prompts(1), **call, custom_generate=decoding), run)
    assert target.generate(**prompts(1), max_new_tokens=20, custom_generate=decoding).shape[1] == 34
    with pytest.raises(ValueError, match="needs the model's tokenizer="):
        target.generate(**prompts(1), **call, custom_generate=mmspec.custom_generate("prompt-lookup"))


@pytest.mark.compiled
def test_a_users_own_stop_string_criterion_stands(
    target: Any, prompts: Callable, tokenizer: Any, stopping: Any
) -> None:
    string, run = stopping
    own = StoppingCriteriaList([StopStringCriteria(tokenizer, string)])
    call = dict(max_new_tokens=20, stop_strings=["a"], tokenizer=tokenizer, stopping_criteria=own)
    with mmspec.enable(target, "prompt-lookup"):
        assert_same(target.generate(**prompts(1), **call), run)
    assert len(own) == 1


def test_nothing_behind_a_stop_is_streamed(
    target: Any, good: Any, prompts: Callable, tokenizer: Any, stopping: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    string, run = stopping
    with mmspec.enable(target, drafter=good, k=6):
        call = dict(max_new_tokens=20, stop_strings=string, tokenizer=tokenizer)
        target.generate(**prompts(1), **call, streamer=TextStreamer(tokenizer))
    assert capsys.readouterr().out == tokenizer.decode(run.ids[0]) + "\n"


def test_a_tokenizer_of_custom_generate_is_also_the_drafters(monkeypatch: pytest.MonkeyPatch, target: Any) -> None:
    """`tokenizer=` and `assistant_tokenizer=` map a draft model's tokens onto the target's vocabulary."""
    seen: list[dict[str, Any]] = []

    def decoder_for(model: Any, method: str, **how: Any) -> None:
        seen.append(how["options"])
        raise KeyboardInterrupt

    # by name: as an attribute of `mmspec.api`, `custom_generate` is the function
    monkeypatch.setattr(importlib.import_module("mmspec.api.custom_generate"), "decoder_for", decoder_for)
    for more in ({}, {"assistant_tokenizer": "theirs"}):
        with pytest.raises(KeyboardInterrupt):
            decoding = mmspec.custom_generate("draft-model", tokenizer="ours", **more)
            target.generate(torch.tensor([[5, 6]]), max_new_tokens=2, custom_generate=decoding)
    assert seen == [{}, {"assistant_tokenizer": "theirs", "tokenizer": "ours"}]


@pytest.mark.compiled
def test_a_row_that_ended_ahead_of_others_is_still_asked_about(
    target: Any, good: Any, theirs: Callable, ours: Callable
) -> None:
    """A criterion may cut a row before its end, and that row may be the last open one."""

    class OneInEleven(StoppingCriteria):
        def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
            return input_ids[:, -1] % 11 == 5

    cut = 0
    for seed in range(10):
        g = torch.Generator().manual_seed(seed)
        inputs = {"input_ids": torch.randint(3, 131, (4, 6), generator=g)}
        ends = torch.randint(3, 131, (6,), generator=g).tolist()
        call = dict(do_sample=True, top_k=0, temperature=0.7, max_new_tokens=24, eos_token_id=ends)
        call |= dict(stopping_criteria=[OneInEleven()])
        run = stock(target, inputs, seed, **call)
        mine = ours(target, inputs, seed, {"method": "draft-model", "drafter": good, "k": 7}, **call)
        assert torch.equal(mine.ids, run.ids) and torch.equal(mine.state, run.state)
        cut += mine.ids.shape[1] < 30
    assert cut > 2
