"""Used pipelines and enabled models are pickled, copied and spawned: what is made for speed is made again elsewhere."""

import copy
import multiprocessing
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

import mmspec
from mmspec.hosts import linear
from mmspec.shipped import asset
from tests.pipelines.conftest import CALLS


@pytest.fixture(autouse=True)
def _packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are packed in models as small as these, too."""
    monkeypatch.setattr(linear, "SMALLEST", 1)
    monkeypatch.setenv("MMSPEC_PRODUCTS", "packed")


LIMIT = 1.05
"""Most bytes of a used pipeline, in those of the fresh one."""


def test_a_used_pipeline_travels(name: str, pipe: Any) -> None:
    fresh = len(pickle.dumps(pipe))
    made = CALLS[name](pipe)
    travels = pickle.dumps(pipe)
    assert len(travels) < LIMIT * fresh + 10_000, "what is made for speed stays behind"
    for other in (pickle.loads(travels), copy.deepcopy(pipe)):
        assert getattr(other, other.target_module) is not getattr(pipe, pipe.target_module)
        assert other.decoder().target.model is getattr(other, other.target_module)
        assert torch.equal(CALLS[name](other), made)
    assert torch.equal(CALLS[name](pipe), made)


PROMPT = torch.tensor([[5, 17, 99, 5, 17, 99, 5]])
ENABLED: dict[str, dict[str, Any]] = {
    "auto": {},
    "goodput": {"method": "token-recycling", "policy": "goodput"},
    "payoff": {"method": "prompt-lookup", "policy": "payoff"},
    "hooks": {"method": "del"},
    "a process": {"method": "pearl", "drafter": "mmspec/text-1m"},
    "learns": {"method": "draft-model", "drafter": "mmspec/text-1m", "learn": True},
}


def written(model: Any) -> Tensor:
    torch.manual_seed(0)
    ids: Tensor = model.generate(PROMPT, max_new_tokens=24, do_sample=True, pad_token_id=1)
    return ids


def enabled(how: dict[str, Any]) -> Any:
    model = AutoModelForCausalLM.from_pretrained(asset("text-1m"), dtype=torch.float32).eval()
    mmspec.enable(model, **how)
    return model


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "a process")) for n in ENABLED])
def test_an_enabled_model_travels(name: str) -> None:
    model = enabled(ENABLED[name])
    made = written(model)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert torch.equal(written(other), made)
        handle = vars(other)["generate"].__self__
        assert handle.report.rounds > 0 and handle.totals.rounds > handle.report.rounds
        mmspec.disable(other)
        assert "generate" not in vars(other) and "generate" in vars(model)


def drawn(name: str, pipe: Any) -> Tensor:
    """The picture of a spawned process."""
    return written(pipe) if name == "enabled" else CALLS[name](pipe)


@pytest.mark.slow
def test_a_spawned_process_draws_the_same(
    text: Any, tiny: Any, continuous: Any, pipes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "SMALLEST", 2**14)  # as in the other process
    given = {"text": text, "tiny": tiny, "continuous": continuous, "codes": pipes["codes"], "enabled": enabled({})}
    made = [drawn(name, pipe) for name, pipe in given.items()]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for ours, theirs in zip(made, pool.starmap(drawn, given.items()), strict=True):
            assert torch.equal(ours, theirs)
