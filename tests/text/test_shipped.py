"""The promise on the models that we ship: `generate` under `mmspec.enable` equals that of transformers for the seed."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec import shipped
from mmspec.compare.equality import assert_same, stock
from mmspec.hosts.loading import load_model, load_tokenizer

SAMPLINGS = {
    "temperature": dict(temperature=0.8, top_k=0),
    "top_p": dict(top_p=0.9, top_k=0),
    "top_k": dict(top_k=20),
    "repetition_penalty": dict(repetition_penalty=1.2, top_k=0),
}
HANDFUL = {1: 5, 3: 2}  # seeds by batch; the slow tier has a hundred
TEXTS = [
    "class Stack:\n    def __init__(self):\n        self._items = []\n\n    def push(self, item):\n        ",
    "KING RICHARD II:\nWhat say you, cousin? Shall we ",
    "import os\nimport sys\n\n\ndef main(",
]


@pytest.fixture(scope="module")
def model() -> Any:
    return load_model("mmspec/text-14m")


@pytest.fixture(scope="module")
def drafter() -> Any:
    return load_model("mmspec/text-1m")


@pytest.fixture(scope="module")
def prompts() -> Callable[[int], dict[str, Tensor]]:
    tokenizer = load_tokenizer("mmspec/text-14m")

    def make(batch: int) -> dict[str, Tensor]:
        return dict(tokenizer(TEXTS[:batch], return_tensors="pt", padding=True, return_token_type_ids=False))

    return make


def compare(model: Any, drafter: Any, inputs: dict[str, Tensor], seeds: Iterable[int], **call: Any) -> list[float]:
    """Both drafters against one stock run a seed; returns their acceptance lengths."""
    runs = [stock(model, inputs, seed, **call) for seed in seeds]
    lengths, ties = [], 0
    for spec in ({"method": "prompt-lookup"}, {"method": "draft-model", "drafter": drafter, "k": 4}):
        emitted = rounds = 0
        with mmspec.enable(model, **spec) as enabled:
            for run in runs:
                torch.manual_seed(run.seed)
                ids = model.generate(**inputs, **call)
                ties += len(assert_same(ids, run, torch.get_rng_state()))
                emitted += enabled.report.emitted - enabled.report.rows
                rounds += enabled.report.row_rounds
        lengths.append(emitted / rounds)
    assert ties <= 0.02 * len(runs) * 2 * len(inputs["input_ids"]), "too many near-ties to call this equality"
    return lengths


def test_prompts_are_padded_on_the_left(prompts: Callable) -> None:
    mask = prompts(3)["attention_mask"]
    assert (mask[:, -1] == 1).all() and (mask[:, 0] == 0).any()


@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize(
    "sampling", [pytest.param(each, marks=[] if each == "top_p" else pytest.mark.slow) for each in SAMPLINGS]
)
@pytest.mark.compiled("history")
def test_sampled(model: Any, drafter: Any, prompts: Callable, sampling: str, batch: int) -> None:
    seeds, call = range(HANDFUL[batch]), dict(do_sample=True, max_new_tokens=16, **SAMPLINGS[sampling])
    lengths = compare(model, drafter, prompts(batch), seeds, **call)
    assert lengths[1] > 1.2, "the shipped drafter is of no use"


@pytest.mark.slow
@pytest.mark.compiled
def test_greedy_for_200_tokens(model: Any, drafter: Any, prompts: Callable) -> None:
    lengths = compare(model, drafter, prompts(3), [0], do_sample=False, max_new_tokens=200, eos_token_id=None)
    assert min(lengths) > 1.1


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_sampled_for_100_seeds(model: Any, drafter: Any, prompts: Callable, sampling: str, batch: int) -> None:
    compare(model, drafter, prompts(batch), range(100), do_sample=True, max_new_tokens=24, **SAMPLINGS[sampling])


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
def test_greedy_for_400_tokens(model: Any, drafter: Any, prompts: Callable, batch: int) -> None:
    compare(model, drafter, prompts(batch), [0], do_sample=False, max_new_tokens=400, eos_token_id=None)


def test_the_shipped_heads_are_small() -> None:
    files = [
        file for name in ("text-14m-eagle3", "text-14m-ppd", "smollm2-eagle3") for file in shipped.asset(name).iterdir()
    ]
    assert sum(file.stat().st_size for file in files) < 21e6


def test_a_shipped_head(model: Any, prompts: Callable) -> None:
    """A tree and a chain of a head: transformers' own output, greedy and sampled, and drafts of use."""
    inputs = prompts(3)
    tree, chain = {"k": 3, "width": 3, "nodes": 7}, {"k": 2, "form": "chain"}
    for form, how in ((tree, {"do_sample": True, "temperature": 0.8, "top_k": 0}), (chain, {"do_sample": False})):
        call: dict[str, Any] = {**how, "max_new_tokens": 20, "eos_token_id": None}
        run = stock(model, inputs, 0, **call)
        with mmspec.enable(model, "eagle", drafter="mmspec/text-14m-eagle3", **form) as enabled:
            torch.manual_seed(0)
            assert_same(model.generate(**inputs, **call), run, torch.get_rng_state())
        assert enabled.report.acceptance_length > 1.2, "the shipped head is of no use"


def test_shipped_prompt_tokens(model: Any, prompts: Callable) -> None:
    """The paper's trees and ours: transformers' own output, and drafts of use."""
    inputs, call = prompts(3), {"do_sample": False, "max_new_tokens": 24, "eos_token_id": None}
    run = stock(model, inputs, 0, **call)
    for form in ({}, {"form": "rerank"}):
        with mmspec.enable(model, "ppd", drafter="mmspec/text-14m-ppd", **form) as enabled:
            torch.manual_seed(0)
            assert_same(model.generate(**inputs, **call), run, torch.get_rng_state())
        assert enabled.report.acceptance_length > 1.1, "the shipped prompt tokens are of no use"
