"""`k` and the vocabulary at their ends, and who says what `k` is."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mmspec
from mmspec.api import plan
from mmspec.api.build import DEFAULT_K, decoder_for
from mmspec.compare.equality import assert_same
from mmspec.core.decoder import Decoder
from mmspec.testing.tiny_models import llama
from mmspec_text.drafters.heads.eagle.checkpoint import read_checkpoint
from tests.support.eagle_layouts import LAYOUTS as EAGLE_LAYOUTS
from tests.support.examples.heads import PRODUCT, random_dflash

SPECULATORS = next(stored for name, stored in EAGLE_LAYOUTS.items() if "speculators" in name)
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


def kept_by(decoder: Decoder) -> tuple[int, str]:
    """The length of a decoder's drafts, and who said so, as its handle and its reports have them."""
    state = decoder.start(torch.tensor([[1, 2, 3]]), 64)
    assert (state.report.k, state.report.k_from) == (decoder.k, decoder.k_from)
    assert not decoder.k_from or f"drafts of up to {decoder.k} units, set by {decoder.k_from}" in str(state.report)
    return decoder.k, decoder.k_from


def test_who_says_how_long_drafts_are(good: Any) -> None:
    """The user, a draft model, `auto`, a head, the method: in this order."""
    block = random_dflash(replace(PRODUCT, block=12))
    head: dict[str, Any] = {"options": {"model": block, "probe": False}}
    assert kept_by(decoder_for(llama(), "dflash", **head)) == (11, "its head")
    assert kept_by(decoder_for(llama(), "dflash", k=3, **head)) == (3, "")
    assert kept_by(decoder_for(llama(), "suffix")) == (10, "the method suffix")
    assert kept_by(decoder_for(llama(), "jacobi-text")) == (DEFAULT_K, "the general default")
    assert kept_by(decoder_for(llama())) == (10, "the choice of auto")
    small = copy.deepcopy(llama())
    small.generation_config.num_assistant_tokens = 7
    assert kept_by(decoder_for(llama(), "draft-model", drafter=small)) == (7, "its draft model's generation_config")
    assert decoder_for(llama(), "plain").k_from == ""


@pytest.mark.parametrize(("asked", "length"), [(7, 7), (None, None), (0, ""), (True, ""), ("3", ""), (10**9, "")])
def test_a_head_of_speculators_says_how_many(asked: Any, length: Any, tmp_path: Path) -> None:
    methods = {"speculators_config": {"proposal_methods": [{"speculative_tokens": asked}]}}
    folder = SPECULATORS.save(tmp_path, changed=methods)
    if length == "":
        with pytest.raises(ValueError, match="speculative_tokens in its config is from 1 to 512, and not "):
            read_checkpoint(str(folder))
    else:
        assert read_checkpoint(str(folder)).length == length


def test_on_an_accelerator_trees_are_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decoder_for(llama(), "token-recycling").drafter.options.nodes == 8
    monkeypatch.setattr(plan, "device_of", lambda model: torch.device("cuda"))
    large = decoder_for(llama(), "token-recycling")
    assert large.k == 6 and large.drafter.options.nodes == 32 and large.drafter.width(6) == 32
    found = decoder_for(llama())
    assert (found.name, found.k, found.drafter.width(10)) == ("auto", 10, 32), "on cuda it chooses the general one"
    chosen = decoder_for(llama(), "token-recycling", k=2, options={"nodes": 4})
    assert chosen.k == 2 and chosen.drafter.options.nodes == 4
    for method in ("token-recycling", "eagle"):
        assert decoder_for(llama(), method, drafter="suffix").k == DEFAULT_K  # which has no such options


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
