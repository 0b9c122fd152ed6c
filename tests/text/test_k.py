"""`k` and the vocabulary at their ends: a million, what is no number, and a model of one token."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mmspec
from mmspec.compare.equality import assert_same

SAMPLED = dict(do_sample=True, max_new_tokens=10)
OWN = ("prompt-lookup", "suffix", "token-recycling", "cascade", "auto")
DRAFTED = ("draft-model", "draft-tree", "stree")


@pytest.mark.thinned(1)
@pytest.mark.parametrize("policy", [None, "goodput"])
@pytest.mark.parametrize("method", [*OWN, *DRAFTED])
def test_a_million(
    target: Any, good: Any, prompts: Callable, theirs: Callable, ours: Callable, method: str, policy: str | None
) -> None:
    spec: dict[str, Any] = {"method": method, "k": 10**6, "policy": policy}
    if method in DRAFTED:
        spec["drafter"] = good
    if method == "stree":
        spec["nodes"] = 6  # nothing is measured here
    mine = ours(target, prompts(2), 0, spec, **SAMPLED)
    assert_same(mine.ids, theirs(target, prompts(2), 0, **SAMPLED), mine.state)
    assert not mine.report.faults


@pytest.mark.parametrize("name", ["k", "num_speculative_tokens"])
@pytest.mark.parametrize("wrong", [-1, True, 2.0, "3", float("nan"), [1]])
def test_what_is_no_number_of_units(target: Any, name: str, wrong: Any) -> None:
    with pytest.raises(ValueError, match="k must be an integer >= 0, got "):
        mmspec.enable(target, "prompt-lookup", **{name: wrong})


def test_integers_of_other_libraries(target: Any) -> None:
    with mmspec.enable(target, "prompt-lookup", k=torch.tensor([4]).numpy()[0]) as spec:
        assert spec._decoder.k == 4 and type(spec._decoder.k) is int


@pytest.mark.thinned(1)
@pytest.mark.parametrize("method", ["plain", *OWN, "draft-model", "rejection", "block"])
@pytest.mark.parametrize("sample", [True, False])
def test_one_token_is_all_there_is(make_llama: Callable, method: str, sample: bool) -> None:
    model = make_llama(vocab_size=1, pad_token_id=None)
    prompt, call = torch.zeros(2, 5, dtype=torch.int64), dict(max_new_tokens=8, do_sample=sample)
    torch.manual_seed(0)
    stock = model.generate(prompt, **call)
    spec = {"method": method}
    if method not in ("plain", *OWN):
        spec = {"method": "draft-model", "drafter": make_llama(vocab_size=1, pad_token_id=None, seed=2)}
        spec |= {"rule": method} if method != "draft-model" else {}
    with mmspec.enable(model, **spec) as enabled:
        torch.manual_seed(0)
        assert torch.equal(model.generate(prompt, **call), stock)
    assert enabled.report is not None and not enabled.report.faults


@pytest.mark.parametrize("method", ["draft-tree", "rsd", "stree"])
def test_siblings_of_one_token_are_refused(make_llama: Callable, method: str) -> None:
    model, small = (make_llama(vocab_size=1, pad_token_id=None, seed=seed) for seed in (0, 2))
    with pytest.raises(ValueError, match=r"wants \d siblings, and there are 1 unit ids"):
        mmspec.enable(model, method, drafter=small)
