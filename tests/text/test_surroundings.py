"""The environment of a call: torch's default dtype and device, other integer types, a model in `train()` mode."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers import FalconConfig, FalconForCausalLM, GPT2Config, GPT2LMHeadModel, OPTConfig, OPTForCausalLM

import mmspec
from mmspec.compare.equality import assert_same

SAMPLED = dict(do_sample=True, top_k=0, temperature=2.0, max_new_tokens=16)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("method", ["plain", "token-recycling", "good"])
def test_the_default_dtype_decides_nothing(
    target: Any, good: Any, prompts: Callable, theirs: Callable, ours: Callable, method: str, dtype: torch.dtype
) -> None:
    """Noise is drawn in the dtype of the probabilities, which is float32 in all of transformers' steps."""
    spec = {"method": "draft-model", "drafter": good} if method == "good" else {"method": method}
    call = {**SAMPLED, "temperature": 50.0}  # nearly uniform, so that the last digits of the noise matter
    for seed in range(2):
        stock = theirs(target, prompts(3), seed, **call)
        with default_dtype(dtype):
            mine = ours(target, prompts(3), seed, spec, **call)
        assert_same(mine.ids, stock, mine.state)
        assert not mine.report.faults


def test_stock_does_not_look_at_the_default_dtype_either(target: Any, prompts: Callable, theirs: Callable) -> None:
    with default_dtype(torch.bfloat16):
        torch.manual_seed(0)
        ids = target.generate(**prompts(3), **SAMPLED)
    assert torch.equal(ids, theirs(target, prompts(3), 0, **SAMPLED).ids)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_rules_and_other_noise_do_not_look_at_it(target: Any, good: Any, prompts: Callable, dtype: Any) -> None:
    def write(**spec: Any) -> torch.Tensor:
        with mmspec.enable(target, "draft-model", drafter=good, seed=5, **spec):
            ids: torch.Tensor = target.generate(**prompts(3), **SAMPLED)
            return ids

    for spec in ({}, {"rule": "recursive-rejection"}):
        usual = write(**spec)
        with default_dtype(dtype):
            assert torch.equal(write(**spec), usual)


@pytest.mark.parametrize("method", ["token-recycling", "prompt-lookup", "suffix"])
def test_a_default_device_is_not_where_things_are_put(
    make_llama: Callable, prompts: Callable, theirs: Callable, ours: Callable, method: str
) -> None:
    """`meta` as an example of a default device that is not the model's; the self-check runs under it, too."""
    model, inputs = make_llama(hidden_size=48, seed=3), prompts(2)
    stock = theirs(model, inputs, 0, **SAMPLED)
    with torch.device("meta"):
        mine = ours(model, inputs, 0, {"method": method}, **SAMPLED)
    assert_same(mine.ids, stock, mine.state)
    assert not mine.report.faults


@pytest.mark.parametrize("method", ["plain", "prompt-lookup", "token-recycling", "suffix", "cascade"])
@pytest.mark.parametrize("way", ["enable", "custom_generate"])
def test_int32_prompts(target: Any, prompts: Callable, theirs: Callable, ours: Callable, way: str, method: str) -> None:
    inputs = prompts(2)
    short = {**inputs, "input_ids": inputs["input_ids"].int()}
    call = dict(do_sample=True, max_new_tokens=12)
    stock = theirs(target, short, 1, **call)
    if way == "enable":
        mine = ours(target, short, 1, {"method": method}, **call).ids
    else:
        torch.manual_seed(1)
        mine = target.generate(**short, **call, custom_generate=mmspec.custom_generate(method))
    assert mine.dtype == stock.ids.dtype and torch.equal(mine, stock.ids)


def test_what_is_no_integer_is_no_prompt(target: Any, prompts: Callable) -> None:
    for dtype in (torch.float32, torch.bool):
        inputs = {**prompts(1), "input_ids": prompts(1)["input_ids"].to(dtype)}
        with mmspec.enable(target, "plain"), pytest.raises(ValueError, match=f"must be integers, got {dtype}"):
            target.generate(**inputs, max_new_tokens=4, do_sample=False)


def test_a_decoder_takes_int32(target: Any, prompts: Callable) -> None:
    from mmspec.core.decoder import Decoder
    from mmspec.hosts.target import TransformersTarget

    ids = prompts(1)["input_ids"]
    decoder = Decoder(TransformersTarget(target))
    wide, narrow = (decoder.generate(given, 9, seed=0).units[0] for given in (ids, ids.int()))
    assert torch.equal(wide, narrow)


SMALL = dict(vocab_size=131, num_hidden_layers=2, num_attention_heads=2, hidden_size=32)
DROPPING: dict[str, tuple[Callable[[Callable], Any], str]] = {
    "modules": (
        lambda make: GPT2LMHeadModel(GPT2Config(vocab_size=131, n_embd=32, n_layer=2, n_head=2)),
        r"its transformer.drop drops units at random \(p=0.1\)",
    ),
    "functions": (
        lambda make: OPTForCausalLM(OPTConfig(**SMALL, ffn_dim=32, word_embed_proj_dim=32)),
        r"its model.decoder draws at random \(dropout=0.1\)",
    ),
    "whole layers": (
        lambda make: OPTForCausalLM(OPTConfig(**SMALL, ffn_dim=32, word_embed_proj_dim=32, dropout=0.0, layerdrop=0.2)),
        r"draws at random \(layerdrop=0.2\)",
    ),
    "by configuration": (
        lambda make: FalconForCausalLM(FalconConfig(**SMALL, alibi=False, hidden_dropout=0.3)),
        r"draws at random \(hidden_dropout=0.3\)",
    ),
    "attention": (lambda make: make(attention_dropout=0.5), r"draws at random \(attention_dropout=0.5\)"),
    "one layer alone": (lambda make: _with_dropout(make()), r"its model.norm drops units at random \(p=0.5\)"),
    "checkpointing": (lambda make: _checkpointed(make()), "its model keeps no cache"),
}


def _with_dropout(model: Any) -> Any:
    model.model.norm = torch.nn.Dropout(0.5)
    return model


def _checkpointed(model: Any) -> Any:
    model.model.gradient_checkpointing = True
    return model


@pytest.mark.parametrize("case", DROPPING)
def test_dropout_is_refused_and_told_how_to_be_off(make_llama: Callable, prompts: Callable, case: str) -> None:
    make, says = DROPPING[case]
    model = make(make_llama)
    call = dict(input_ids=prompts(1)["input_ids"], max_new_tokens=6, do_sample=True, pad_token_id=0)
    model.train()
    with (
        mmspec.enable(model, "prompt-lookup"),
        pytest.raises(ValueError, match=rf"train\(\) mode, where .*{says}.*eval"),
    ):
        model.generate(**call)
    model.eval()
    torch.manual_seed(0)
    stock = model.generate(**call)
    with mmspec.enable(model, "prompt-lookup"):
        torch.manual_seed(0)
        assert torch.equal(model.generate(**call), stock)


def test_a_model_in_training_without_dropout_is_taken(
    make_llama: Callable, prompts: Callable, theirs: Callable, ours: Callable
) -> None:
    model = make_llama(seed=4).train()
    stock = theirs(model, prompts(2), 0, **SAMPLED)
    mine = ours(model, prompts(2), 0, {"method": "token-recycling"}, **SAMPLED)
    assert_same(mine.ids, stock, mine.state)
    assert model.training


def test_a_draft_model_is_no_exception(target: Any, make_llama: Callable, prompts: Callable) -> None:
    small = make_llama(seed=7, num_hidden_layers=1, attention_dropout=0.3).train()
    with mmspec.enable(target, "draft-model", drafter=small), pytest.raises(ValueError, match="the draft model is in"):
        target.generate(**prompts(1), max_new_tokens=4)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("size", [140, 120])
@pytest.mark.parametrize(("method", "small"), [("suffix", False), ("draft-model", False), ("draft-model", True)])
def test_a_vocabulary_that_was_resized_while_enabled_is_refused_by_name(
    make_llama: Callable, method: str, small: bool, size: int
) -> None:
    """Before anything runs; enabled again, the model goes on."""
    model, drafter = make_llama(), make_llama(1)
    ids = torch.randint(3, 100, (2, 7))
    how = {"drafter": drafter} if method == "draft-model" else {}
    spec = mmspec.enable(model, method, **how)
    model.generate(ids, **SAMPLED)
    (drafter if small else model).resize_token_embeddings(size)
    report = spec.report
    who = "draft model" if small else "model"
    with pytest.raises(ValueError, match=rf"the {who} has {size} token ids now .* made for 131: enable it again"):
        model.generate(ids, **SAMPLED)
    assert spec.report is report
    for each in (model, drafter):
        each.resize_token_embeddings(size)
    with mmspec.enable(model, method, **how):
        torch.manual_seed(1)
        ours = model.generate(ids, **SAMPLED)
    torch.manual_seed(1)
    assert torch.equal(ours, model.generate(ids, **SAMPLED))
