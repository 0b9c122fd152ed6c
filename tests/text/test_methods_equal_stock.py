"""Under methods that draft by themselves, or by a smaller model, texts are those of unmodified `generate`."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import mmspec
from mmspec.compare.equality import Stock, assert_same, stock
from mmspec.core.protocols import Drafter
from mmspec_text.drafters.lookup_recycling import LookupRecycling, LookupRecyclingOptions
from mmspec_text.drafters.suffix import Suffix, SuffixOptions
from mmspec_text.drafters.token_recycling import TokenRecycling, TokenRecyclingOptions
from tests.support.zoo import build, noisy

Runs = dict[int, Stock]
HOT: dict[str, Any] = {"do_sample": True, "temperature": 0.8}
COOL: dict[str, Any] = {"do_sample": True, "temperature": 0.3}
ENDS = [17, 40, 41, 63, 77, 90, 91, 92, 101, 120]


def sorted_exits(model: PreTrainedModel) -> dict[str, Any]:
    layers = model.config.num_hidden_layers
    return {"exits": (layers // 2, layers), "sure": 0.95, "stop": 0.1}


def written(runs: Runs) -> list[list[int]]:
    return [ids for run in runs.values() for ids in run.ids.tolist()]


PART = {"eta": 0, "first": 1, "chunk": 3, "chunks": 1, "end": 5}
METHODS: dict[str, tuple[dict[str, Any], float, float, Callable[[PreTrainedModel, Runs], dict[str, Any]]]] = {
    # name: how it samples, how wrong its draft model is, units a round, its options for a model whose texts are known
    "llmcad": (HOT, 0.05, 1.3, lambda model, runs: {"nodes": 8, "threshold": 0.3, "k": 5}),
    "lookahead": (COOL, 0, 1.0, lambda model, runs: {"k": 5}),
    "sequoia": (HOT | {"top_k": 0}, 0.05, 1.5, lambda model, runs: {"nodes": 8, "prior": 4.0, "k": 4}),
    "mirror-sd": (HOT, 0.05, 1.01, lambda model, runs: {"executor": "serial", "exit": 1, "k": 4}),
    "s2d": (HOT, 0.05, 1.1, lambda model, runs: {**sorted_exits(model), "k": 4}),
    "rapid": (HOT, 0.02, 1.0, lambda model, runs: {**PART, "k": 3}),
    "rapid by itself": (HOT, 0, 1.0, lambda model, runs: {**PART, "k": 3}),
    "vocab-trim": (HOT, 0.05, 1.3, lambda model, runs: {"corpus": written(runs), "keep": 60, "k": 4}),
}
SLOW = ("falcon-new", "mistral", "gemma2", "qwen3_moe")
MODELS = ["llama", "gpt2", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


@pytest.mark.thinned
@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", METHODS)
def test_equal_to_unmodified_generate(name: str, model: str, sample: bool, prompts: Callable) -> None:
    """A ragged batch of three, and a row alone; the second call finds what the first one left."""
    sampling, wrong, units, options = METHODS[name]
    target, call = build(model), {"max_new_tokens": 20, **(sampling if sample else {"do_sample": False})}
    runs = {batch: stock(target, prompts(batch), 0, **call) for batch in (3, 1)}
    small = noisy(target, wrong) if wrong else None
    with mmspec.enable(target, name.split()[0], drafter=small, **options(target, runs)) as spec:
        for batch, expected in runs.items():
            torch.manual_seed(0)
            assert_same(target.generate(**prompts(batch), **call), expected, torch.get_rng_state())
            assert spec.report is not None and spec.report.drafted > 0 and not spec.report.faults
            assert spec.report.acceptance_length >= units
    assert (spec.report.inner_passes > 0) == (name == "rapid by itself")
    assert not any(module._forward_pre_hooks for module in target.modules())


def recycling(number: int) -> Drafter:
    return TokenRecycling(TokenRecyclingOptions(**({}, {"nodes": "released", "width": 3})[number]))


def lookup_recycling(number: int) -> Drafter:
    return LookupRecycling(LookupRecyclingOptions(**({}, {"nodes": 20, "width": 3, "min_ngram": 1})[number]))


def suffix(number: int) -> Drafter:
    corpus = torch.randint(3, 131, (400,), generator=torch.Generator().manual_seed(0))
    return Suffix(SuffixOptions(**({}, {"threshold": 0, "corpus": corpus, "remember": 50})[number]))


@pytest.mark.parametrize(
    "call",
    [
        dict(do_sample=False, max_new_tokens=60),
        pytest.param(
            dict(do_sample=False, max_new_tokens=20, repetition_penalty=1.3, eos_token_id=ENDS), marks=pytest.mark.slow
        ),
        dict(do_sample=True, max_new_tokens=20, top_k=0, temperature=0.8, eos_token_id=ENDS),
        pytest.param(dict(do_sample=True, max_new_tokens=20, top_k=20, top_p=0.9), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("drafter", [recycling, lookup_recycling, suffix])
@pytest.mark.compiled("history")
def test_live_drafters_from_texts(
    drafter: Callable, target: Any, prompts: Callable, theirs: Callable, ours: Callable, call: dict[str, Any]
) -> None:
    drafted = 0
    for seed, batch in itertools.product((0, 1), (1, 3)):
        mine = ours(target, prompts(batch, seed), seed, {"drafter": drafter(seed), "k": 4}, **call)
        assert_same(mine.ids, theirs(target, prompts(batch, seed), seed, **call), mine.state)
        assert mine.report.faults == 0
        drafted += mine.report.drafted
    assert drafted > 0
