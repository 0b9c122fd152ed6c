"""Every architecture in the zoo with attention scaled up, so that it hears where units stand: equal to stock."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.compare.equality import assert_same, stock
from mmspec.hosts import call_prefill, self_check, target
from mmspec.hosts.passes import Passes
from mmspec.hosts.stock_generate import StockGenerate
from mmspec.hosts.target import TransformersTarget
from tests.support.examined import RIGHT
from tests.support.zoo import ARCHITECTURES, RECURRENT, build
from tests.support.zoo.recipe import SPREAD, scaled
from tests.support.zoo.vision import VISION

NEW = 16
CALLS: dict[str, dict[str, Any]] = {
    "greedy": dict(do_sample=False, max_new_tokens=NEW),
    "sampled": dict(do_sample=True, top_k=0, temperature=2.0, max_new_tokens=NEW),
}
SOFTER = dict.fromkeys(("rembert", "nemotron_h", "zamba2", "qwen3_5_moe_text", "kimi_linear"), 0.2)
"""Where rounding grows with the full spread until no pass agrees with another, not even two of stock."""

QUICK = ["llama", "mistral", "gpt2", "gptj", "gemma3n_text", "mamba2", "qwen2_vl", "exaone4_5"]
"""One of every way to say where a unit stands: rotary, in windows, a table, interleaved, mixed, none, axes, slots."""


class External:
    """Drafts what stock says, with a wrong unit behind it: `text [batch, new]`."""

    def __init__(self, text: Tensor) -> None:
        self.text = text.tolist()
        self.begun: list[int] = []

    def propose(self, tokens: list[list[int]], k: int) -> list[list[int]]:
        self.begun = self.begun or [len(row) - 1 for row in tokens]  # the prefill's unit is there already
        done = [len(row) - begun for row, begun in zip(tokens, self.begun, strict=True)]
        return [[*text[n : n + k - 1], 5][:k] for text, n in zip(self.text, done, strict=True)]


def made(name: str, prompts: Callable) -> tuple[Any, dict[str, Tensor]]:
    """The model, and a ragged batch; one row of it where stock counts its padding."""
    spread = SOFTER.get(name, SPREAD)
    if name in VISION:
        return scaled(VISION[name].model(), spread), VISION[name].inputs(3)
    alone = name in ARCHITECTURES and ARCHITECTURES[name].alone
    return scaled(build(name), spread), prompts(1 if alone else 3)


def equal(model: Any, inputs: dict[str, Tensor], call: dict[str, Any]) -> float:
    """Compare a call; the acceptance length."""
    run = stock(model, inputs, 0, **call)
    prompt = inputs["input_ids"].shape[1]
    with mmspec.enable(model, drafter=External(run.ids[:, prompt:]), k=4) as spec:
        torch.manual_seed(0)
        ids = model.generate(**inputs, **call)
        state = torch.get_rng_state()
    assert_same(ids, run, state)
    assert spec.report is not None
    return spec.report.acceptance_length


ALL = [*ARCHITECTURES, *RECURRENT, *VISION]


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in ALL])
@pytest.mark.compiled("history", "expert loop", "numpy")
def test_equals_stock(name: str, prompts: Callable) -> None:
    model, inputs = made(name, prompts)
    for call in CALLS.values():
        assert equal(model, inputs, call) > 2, "next to nothing was accepted, so nothing was tested"


@pytest.mark.parametrize("name", ["llama", "qwen2_vl"])
def test_a_wrong_position_is_seen(name: str, prompts: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes one position too far on: refused by the self-check; and if that were blind, another text."""
    model, inputs = made(name, prompts)
    right = Passes._positions

    def off(self: Passes, cache: Any, depth: Tensor, valid: Tensor | None) -> Tensor:
        return right(self, cache, depth, valid) + (depth > 0)

    manner = TransformersTarget(model).passes.manner
    monkeypatch.setattr(Passes, "_positions", off)
    monkeypatch.setattr(self_check, "examine", RIGHT)
    with pytest.raises(ValueError, match="logits of tree nodes differ"):
        mmspec.enable(copy.deepcopy(model), "prompt-lookup")
    monkeypatch.setattr(target, "checked", lambda model_info, **_: Passes(model_info, manner))
    monkeypatch.setattr(call_prefill, "compare_calls", lambda *call: None)
    with pytest.raises(AssertionError, match=r"got \d+ instead of"):
        equal(model, inputs, CALLS["greedy"])


def test_a_root_in_a_wrong_place_is_seen_in_the_call(prompts: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a picture positions are the call's own: a shift that is off by one is no matter of the model."""
    model, inputs = made("qwen2_vl", prompts)
    right = StockGenerate.following
    monkeypatch.setattr(StockGenerate, "following", lambda self: right(self) + 1)
    with (
        mmspec.enable(model, "prompt-lookup"),
        pytest.raises(
            ValueError, match=r"behind a prompt with mm_encoder_outputs, .*, its own next steps differ from ours by"
        ),
    ):
        model.generate(**inputs, **CALLS["greedy"])
