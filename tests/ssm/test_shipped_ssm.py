"""The promise on the hybrid that we ship: `generate` under `mmspec.enable` equals that of transformers for the seed."""

from typing import Any

import pytest
import torch

import mmspec
from mmspec import shipped
from mmspec.compare.equality import Stock, assert_same, stock
from mmspec.hosts.loading import load_model, load_tokenizer
from tests.support.shipped import assert_small

TEXTS = ("class Stack:\n    def push(self, item):\n        ", "KING RICHARD II:\nWhat say you, ", "import os\n\n\ndef ")
CALLS: dict[str, dict[str, Any]] = {
    "greedy": dict(do_sample=False, max_new_tokens=100),
    "sampled": dict(do_sample=True, temperature=0.8, top_k=0, max_new_tokens=60),
}
METHODS: dict[str, dict[str, Any]] = {
    "stree": {"drafter": "mmspec/text-1m", "k": 6, "nodes": 12},
    "draft-model": {"drafter": "mmspec/text-1m", "k": 3},
    "suffix": {"k": 10},
}


@pytest.fixture(scope="module")
def model() -> Any:
    return load_model("mmspec/ssm-5m")


@pytest.fixture(scope="module")
def inputs() -> Any:
    tokenizer = load_tokenizer("mmspec/ssm-5m")
    return dict(tokenizer(list(TEXTS), return_tensors="pt", padding=True, return_token_type_ids=False))


@pytest.fixture(scope="module")
def theirs(model: Any, inputs: Any) -> dict[str, Stock]:
    return {name: stock(model, inputs, 0, eos_token_id=None, **call) for name, call in CALLS.items()}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.compiled
def test_equals_transformers(model: Any, inputs: Any, theirs: dict[str, Stock], call: str, method: str) -> None:
    with mmspec.enable(model, method, **METHODS[method]) as enabled:
        torch.manual_seed(0)
        ids = model.generate(**inputs, eos_token_id=None, **CALLS[call])
        assert len(assert_same(ids, theirs[call], torch.get_rng_state())) <= 1, "too many near-ties"
        assert enabled.report is not None and enabled.report.acceptance_length > 1.1, "drafts are of no use"


FORMS: dict[str, dict[str, Any]] = {
    "tree": {"k": 3, "width": 3, "nodes": 7},
    "chain": {"k": 2, "form": "chain"},
}


@pytest.mark.parametrize(
    ("form", "how", "rows"),
    [
        ("tree", {"do_sample": True, "temperature": 0.8, "top_k": 0}, 3),
        ("chain", {"do_sample": False}, 3),
        pytest.param("tree", {"do_sample": False}, 1, marks=pytest.mark.slow),
        pytest.param("chain", {"do_sample": True, "temperature": 0.8, "top_k": 0}, 1, marks=pytest.mark.slow),
    ],
)
def test_the_shipped_head(model: Any, inputs: Any, form: str, how: dict[str, Any], rows: int) -> None:
    """The EAGLE-3 head of the hybrid: transformers' own output over trees and chains, and drafts of use."""
    folder = shipped.asset("ssm-5m-eagle3")
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2e6
    some = {name: value[:rows] for name, value in inputs.items()}
    call = {**how, "max_new_tokens": 24, "eos_token_id": None}
    run = stock(model, some, 0, **call)
    with mmspec.enable(model, "eagle", drafter="mmspec/ssm-5m-eagle3", **FORMS[form]) as enabled:
        torch.manual_seed(0)
        assert_same(model.generate(**some, **call), run, torch.get_rng_state())
    assert enabled.report is not None and enabled.report.acceptance_length > 1.2, "the shipped head is of no use"


class Clock:
    """A second from every reading to the next: rounds take the same, whatever is drafted."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1
        return self.now


@pytest.mark.slow  # plain texts of the pipeline are on file: tests/recorded
def test_a_pipeline_writes_what_plain_decoding_writes(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.core.decoder.time", Clock())  # which the card's policy asks what drafts cost
    pipe = mmspec.Pipeline.from_pretrained("mmspec/ssm-5m")
    made = pipe(list(TEXTS), max_new_tokens=60, temperature=0)
    assert made.report.method == pipe.decoder().name != "plain"
    plain = pipe.use("plain")(list(TEXTS), max_new_tokens=60, temperature=0)
    assert made.texts == plain.texts and made.report.rounds < plain.report.rounds
    pipe.save_pretrained(tmp_path)
    assert type(mmspec.Pipeline.from_pretrained(str(tmp_path))) is type(pipe)


def test_the_drafter_of_the_text_target_drafts_for_it(model: Any) -> None:
    """One tokenizer, one vocabulary: nothing is mapped."""
    ours, drafter = load_tokenizer("mmspec/ssm-5m"), load_tokenizer("mmspec/text-1m")
    assert ours.get_vocab() == drafter.get_vocab() and model.config.model_type == "bamba"


def test_it_is_small() -> None:
    assert_small("ssm-5m", 12_000_000)
