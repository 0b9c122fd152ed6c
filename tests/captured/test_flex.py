"""Captured rounds that attend through FlexAttention: here without its kernel, beside the eager loop; and on CUDA."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import Gemma2Config, Gemma3TextConfig, LlamaConfig, MistralConfig

from mmspec.api.build import decoder_for
from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.hosts import buffer_cache, flex_attention
from mmspec.hosts.flex_attention import FLEX, ancestor_words
from mmspec.hosts.masks import NAME
from mmspec.hosts.target import TransformersTarget
from mmspec.hosts.target_cache import TransformersTargetCache
from tests.captured.conftest import forget, lockstep
from tests.captured.test_text import WIDE, Alternating, both, ragged
from tests.support.random_models import random_model

WINDOWED = [
    MistralConfig(**WIDE, sliding_window=8),
    Gemma2Config(**WIDE, sliding_window=8, query_pre_attn_scalar=8, attn_logit_softcapping=5.0),
    Gemma3TextConfig(
        **WIDE, sliding_window=8, layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=8
    ),
]


@pytest.fixture
def flex(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured passes attend as they do on CUDA."""
    monkeypatch.setattr(buffer_cache, "fits", lambda passes, slots: True)


@pytest.fixture(scope="module")
def model() -> Any:
    return random_model(LlamaConfig(**{**WIDE, "num_hidden_layers": 1}), gain=4.0)


def attention_of(decoder: Decoder) -> set[str | None]:
    """The attention of a decoder's captured passes."""
    caches = [captured.cache for captured in decoder.captures.pool.rounds]
    return {each.slots.attention for each in caches if isinstance(each, TransformersTargetCache)}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["prompt-lookup", "token-recycling"])
def test_every_round_equals_the_eager_loops(model: Any, method: str, flex: None) -> None:
    eager, captured = both(model, method)
    rounds = lockstep(eager, captured, ragged(), 24, seed=3, warp=Warp.sampling(0.9), ends=[7, 11])
    assert rounds > 3 and attention_of(captured) == {FLEX}


@pytest.mark.slow
@pytest.mark.parametrize("config", WINDOWED, ids=lambda config: config.model_type)
def test_windows_and_soft_caps(config: Any, flex: None) -> None:
    eager, captured = both(random_model(config, gain=4.0), "token-recycling")
    lockstep(eager, captured, ragged(), 24, seed=3)
    assert attention_of(captured) == {FLEX}


@pytest.mark.slow
def test_a_tree_of_every_row(model: Any, flex: None) -> None:
    forget(model)
    target = TransformersTarget(model)
    eager, captured = (Decoder(target, Alternating(), k=3, shape="one", compile=c) for c in (None, True))
    lockstep(eager, captured, ragged(), 16, seed=3)
    assert attention_of(captured) == {FLEX}


def test_elsewhere_than_on_cuda_attention_stays_packed(model: Any) -> None:
    target = TransformersTarget(model)
    cache = target.start_fixed(ragged(), 8, 4).cache
    assert target.held(cache, 4).load(cache).slots.attention == NAME


def no_kernel(ancestor: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError("no kernel")


def no_ancestors(ancestor: torch.Tensor) -> torch.Tensor:
    return ancestor_words(torch.zeros_like(ancestor))


@pytest.mark.parametrize("mutant", [no_kernel, pytest.param(no_ancestors, marks=pytest.mark.slow)])
def test_a_pass_that_cannot_be_compiled_or_is_wrong_goes_back(
    model: Any, mutant: Callable[..., torch.Tensor], flex: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flex_attention, "ancestor_words", mutant)
    forget(model)
    eager, captured = both(model, "prompt-lookup")
    with pytest.warns(UserWarning, match="compiled in another way: attention reads all slots"):
        found = captured.generate(ragged(), 12, seed=1)
    assert found.report.compiled and attention_of(captured) == {NAME}
    expected = eager.generate(ragged(), 12, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(expected.units, found.units, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("method", ["prompt-lookup", "token-recycling"])
def test_the_kernel_on_cuda(inductor: None, method: str, dtype: torch.dtype) -> None:
    config = {**WIDE, "hidden_size": 128, "head_dim": 32}
    model = random_model(LlamaConfig(**config), gain=4.0).to("cuda", dtype)
    inputs = {name: each.cuda() for name, each in ragged().items()}
    decoder = decoder_for(model, method, k=5, compile=True)
    plain = decoder_for(model, "plain", shape=decoder.one_width(), compile=True)
    for seed in range(4):
        found, expected = (each.generate(inputs, 48, seed=seed, warp=Warp.sampling(0.9)) for each in (decoder, plain))
        assert found.report.compiled and attention_of(decoder) == {FLEX}
        assert all(torch.equal(a, b) for a, b in zip(found.units, expected.units, strict=True))
