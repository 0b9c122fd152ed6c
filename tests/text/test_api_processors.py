"""Logits processors: pure ones with drafts, all others without, called as transformers calls them."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, SynthIDTextWatermarkingConfig, WatermarkingConfig
from transformers.generation import logits_process

import mmspec
from mmspec.compare.equality import assert_same, stock
from mmspec.core import processors

ENDS = [17, 40, 41, 63, 77]
SAMPLED = dict(do_sample=True, top_k=0, max_new_tokens=20, eos_token_id=ENDS)


@pytest.fixture(params=["prompt-lookup", "good"])
def drafting(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Arguments of `enable` under which there are drafts."""
    if request.param == "good":
        return {"drafter": request.getfixturevalue("good"), "k": 4}
    return {"method": "prompt-lookup"}


class Counting(LogitsProcessor):
    """A processor with state: every call favours another id. It records its inputs."""

    def __init__(self, log: list[Any]) -> None:
        self.calls = 0
        self.log = log

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls += 1
        self.log.append((type(self).__name__, self.calls, input_ids.tolist()))
        favour = torch.arange(scores.shape[-1]) % 7 == self.calls % 7
        return scores + 2 * favour


class Second(Counting):
    pass


@pytest.mark.thinned
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("more", [{}, {"repetition_penalty": 1.2, "top_p": 0.9}], ids=["alone", "among others"])
@pytest.mark.compiled("history")
def test_a_processor_with_state_is_called_as_in_transformers(
    target: Any, prompts: Callable, ours: Callable, drafting: dict[str, Any], batch: int, more: dict[str, Any]
) -> None:
    """It is called once per step, in order, with padded ids; the call has one warning and no drafts."""
    for seed in range(2):
        logs: list[list[Any]] = [[], []]
        call = {**SAMPLED, **more}
        run = stock(target, prompts(batch, seed), seed, **call, logits_processor=[Counting(logs[0]), Second(logs[0])])
        with pytest.warns(UserWarning, match="without drafts, because Counting, Second may keep state") as caught:
            mine = [Counting(logs[1]), Second(logs[1])]
            out = ours(target, prompts(batch, seed), seed, drafting, **call, logits_processor=mine)
        assert_same(out.ids, run, out.state)
        assert logs[0] == logs[1] and len(logs[0]) == 2 * len(run.scores)
        assert len(caught) == 1 and out.report.drafted == 0


def test_scores_of_such_a_call(target: Any, prompts: Callable, drafting: dict[str, Any]) -> None:
    asked = dict(return_dict_in_generate=True, output_scores=True, output_logits=True, do_sample=False)
    call = dict(max_new_tokens=8, **asked)
    theirs = target.generate(**prompts(3), **call, logits_processor=[Counting([])])
    with mmspec.enable(target, **drafting), pytest.warns(UserWarning, match="without drafts"):
        mine = target.generate(**prompts(3), **call, logits_processor=[Counting([])])
    for which in ("scores", "logits"):
        assert torch.allclose(torch.stack(mine[which]), torch.stack(theirs[which]), atol=1e-4)


def test_a_plain_method_needs_no_warning(target: Any, prompts: Callable, ours: Callable) -> None:
    logs: list[list[Any]] = [[], []]
    run = stock(target, prompts(3), 0, **SAMPLED, logits_processor=[Counting(logs[0])])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = ours(target, prompts(3), 0, {"method": "plain"}, **SAMPLED, logits_processor=[Counting(logs[1])])
    assert_same(out.ids, run, out.state)
    assert logs[0] == logs[1]


@pytest.mark.compiled("history")
def test_the_next_call_drafts_again(target: Any, prompts: Callable, good: Any) -> None:
    with mmspec.enable(target, drafter=good, k=4) as spec:
        with pytest.warns(UserWarning, match="without drafts"):
            target.generate(**prompts(1), **SAMPLED, logits_processor=LogitsProcessorList([Counting([])]))
        assert spec.report is not None and spec.report.drafted == 0
        target.generate(**prompts(1), **SAMPLED)
        assert spec.report.drafted > 0 and spec.method == "draft-model"


@pytest.mark.compiled("history")
def test_synthid_watermark(target: Any, prompts: Callable, ours: Callable, drafting: dict[str, Any]) -> None:
    """The state of a watermark: the context of every row, and the contexts seen."""
    config = SynthIDTextWatermarkingConfig(keys=[654, 400, 836, 123], ngram_len=3, context_history_size=16)
    for seed in range(2):
        call = {**SAMPLED, "watermarking_config": config}
        run = stock(target, prompts(3, seed), seed, **call)
        with pytest.warns(UserWarning, match="SynthIDTextWatermarkLogitsProcessor"):
            out = ours(target, prompts(3, seed), seed, drafting, **call)
        assert_same(out.ids, run, out.state)
        assert not torch.equal(run.ids, stock(target, prompts(3, seed), seed, **SAMPLED).ids), "no watermark"


@pytest.mark.thinned(1)
@pytest.mark.parametrize("sampling", [dict(do_sample=False), dict(do_sample=True, top_k=0)], ids=["greedy", "sampled"])
@pytest.mark.compiled("history")
def test_unbatched_guidance(
    target: Any, prompts: Callable, ours: Callable, drafting: dict[str, Any], sampling: dict[str, Any]
) -> None:
    """A processor that runs the model itself: its prompt becomes half of the batch, and drafts are allowed."""
    negative = torch.randint(3, 131, (3, 4), generator=torch.Generator().manual_seed(5))
    for more in ({}, {"negative_prompt_ids": negative}):
        call = dict(**sampling, **more, guidance_scale=1.7, max_new_tokens=15, eos_token_id=ENDS)
        run = stock(target, prompts(3), 0, **call)
        out = ours(target, prompts(3), 0, drafting, **call)
        assert_same(out.ids, run, out.state)


KNOWN = {
    "watermark": dict(watermarking_config=WatermarkingConfig(bias=3.0)),
    "sequence_bias": dict(sequence_bias=[[[30], -5.0], [[44, 45], 6.0], [[12], 3.0]]),
    "bad_words_ids": dict(bad_words_ids=[[30, 31], [50], [12, 13, 14]]),
    "renormalize_logits": dict(renormalize_logits=True, top_p=0.8),
    "begin_suppress_tokens": dict(begin_suppress_tokens=[4, 5, 6, 7, 8, 9]),
    "forced_eos_token_id": dict(forced_eos_token_id=41),
    "exponential decay": dict(exponential_decay_length_penalty=(4, 1.3)),
    "encoder": dict(encoder_repetition_penalty=1.4, encoder_no_repeat_ngram_size=2),
    "lengths": dict(min_length=20, min_new_tokens=9),
    "cutoffs": dict(epsilon_cutoff=2e-3, eta_cutoff=2e-3, remove_invalid_values=True, top_h=0.7),
}


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.compiled("history")
def test_those_of_transformers_that_are_pure_run_with_drafts(
    target: Any, good: Any, prompts: Callable, ours: Callable, name: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for seed in range(2):
            call = {**SAMPLED, **KNOWN[name]}
            out = ours(target, prompts(3, seed), seed, {"drafter": good, "k": 4}, **call)
            assert_same(out.ids, stock(target, prompts(3, seed), seed, **call), out.state)
            assert out.report.drafted > 0


class Pure(LogitsProcessor):
    """A pure function of ids and scores: no id twice in three tokens."""

    speculative = "history"

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores.scatter(1, input_ids[:, -2:], -torch.inf)


class Flat(LogitsProcessor):
    """A pure function of scores."""

    speculative = "elementwise"

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores / 2


@pytest.mark.compiled("history")
def test_a_class_of_ones_own_may_say_that_it_is_pure(target: Any, prompts: Callable, ours: Callable, good: Any) -> None:
    for own in ([Pure()], [Flat()], [Flat(), Pure()]):
        run = stock(target, prompts(3), 0, **SAMPLED, logits_processor=own)
        out = ours(target, prompts(3), 0, {"drafter": good, "k": 4}, **SAMPLED, logits_processor=own)
        assert_same(out.ids, run, out.state)
        assert out.report.accepted > 0


def test_what_a_class_says_must_exist(target: Any, prompts: Callable) -> None:
    class Sure(Pure):
        speculative = "always"

    with (
        mmspec.enable(target, "prompt-lookup"),
        pytest.raises(ValueError, match=r"Sure\.speculative is 'always'; it is one of 'elementwise', 'history'"),
    ):
        target.generate(**prompts(1), **SAMPLED, logits_processor=[Sure()])


@pytest.mark.compiled("history")
def test_allowed_tokens_of_a_trie(target: Any, prompts: Callable, ours: Callable, drafting: dict[str, Any]) -> None:
    """Such a function may have no answer for a prefix that it would not have allowed, as drafts contain."""
    after = {None: [20, 21, 22], 20: [23, 24], 21: [25], 22: [26, 27], 23: [20], 24: [21], 25: [22], 26: [20], 27: [21]}

    def allowed(row: int, ids: Tensor) -> list[int]:
        return after.get(None if len(ids) == 14 else int(ids[-1]), [])

    call = {**SAMPLED, "eos_token_id": None, "prefix_allowed_tokens_fn": allowed}
    run = stock(target, prompts(3), 0, **call)
    with pytest.warns(UserWarning, match="PrefixConstrainedLogitsProcessor may keep state"):
        out = ours(target, prompts(3), 0, drafting, **call)
    assert_same(out.ids, run, out.state)


@pytest.mark.compiled("history")
def test_allowed_tokens_that_answer_for_any_prefix_are_drafted_over(
    target: Any, good: Any, prompts: Callable, ours: Callable
) -> None:
    def allowed(row: int, ids: Tensor) -> list[int]:
        return list(range(5 + int(ids[-1]) % 3 + row, 120, 2))

    allowed.speculative = "history"  # type: ignore[attr-defined]
    call = {**SAMPLED, "prefix_allowed_tokens_fn": allowed}
    run = stock(target, prompts(3), 0, **call)
    out = ours(target, prompts(3), 0, {"drafter": good, "k": 4}, **call)
    assert_same(out.ids, run, out.state)
    assert out.report.accepted > 0


def test_every_processor_of_transformers_was_looked_at() -> None:
    """Every processor of transformers is known as pure, or is known to run without drafts."""
    there = {
        name
        for name, kind in vars(logits_process).items()
        if isinstance(kind, type) and issubclass(kind, LogitsProcessor) and kind is not LogitsProcessor
    }
    assert set(processors._KNOWN) <= there
    assert there - set(processors._KNOWN) == {
        "AlternatingCodebooksLogitsProcessor", "BarkEosPrioritizerLogitsProcessor",
        "ClassifierFreeGuidanceLogitsProcessor", "DiaClassifierFreeGuidanceLogitsProcessor",
        "DiaEOSChannelFilterLogitsProcessor", "DiaEOSDelayPatternLogitsProcessor", "PrefixConstrainedLogitsProcessor",
        "SynthIDTextWatermarkLogitsProcessor", "UnbatchedClassifierFreeGuidanceLogitsProcessor",
        "WhisperNoSpeechDetection", "WhisperTimeStampLogitsProcessor",
    }  # fmt: skip
