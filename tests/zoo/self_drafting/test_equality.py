"""Self-drafted texts are those of unmodified `generate`, on six architectures; what cannot draft for itself says so."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from transformers import (
    BambaConfig,
    FalconConfig,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    Qwen3MoeConfig,
)

import mmspec
from mmspec.api.build import decoder_for
from mmspec.compare.equality import assert_same
from mmspec.core.decoder import Decoder
from mmspec.core.hidden import FINAL
from mmspec_zoo.self_drafting.layer_skip import LayerSkip, LayerSkipOptions
from tests.support.random_models import random_model

SIZES: dict[str, Any] = dict(
    vocab_size=131,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=256,
    pad_token_id=0,
    eos_token_id=None,
)
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**SIZES),
    "mistral, a window": lambda: MistralConfig(**SIZES, sliding_window=16),
    "gemma 2": lambda: Gemma2Config(**SIZES, sliding_window=16),
    "qwen 3, experts": lambda: Qwen3MoeConfig(
        **SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, decoder_sparse_step=1
    ),
    "gpt-2": lambda: GPT2Config(vocab_size=131, n_embd=32, n_layer=4, n_head=4, n_positions=256, pad_token_id=0),
    "falcon": lambda: FalconConfig(
        vocab_size=131, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, pad_token_id=0, alibi=False
    ),
}
METHODS: dict[str, dict[str, Any]] = {
    "layer-skip": {"k": 3, "exit": 3},
    "swift": {"k": 5, "window": 4, "nodes": 8},
    "del": {"k": 4, "latest": 3},
}
FAST = {("layer-skip", "gpt-2"), ("swift", "gemma 2"), ("del", "llama")}
CASES = [
    pytest.param(method, name, marks=[] if (method, name) in FAST else pytest.mark.slow)
    for method in METHODS
    for name in CONFIGS
]


@cache
def model_of(name: str) -> Any:
    """Its later layers matter less than the first one, as in trained models."""
    later = {f".{number}.": 0.4 for number in (1, 2, 3)}
    return random_model(CONFIGS[name](), gain=5.0, head=8.0, factors=later)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize(("method", "name"), CASES)
@pytest.mark.compiled("expert loop")
def test_texts_are_those_of_generate(
    prompts: Callable, theirs: Callable, ours: Callable, method: str, name: str, batch: int, sampled: bool
) -> None:
    call = dict(max_new_tokens=24, do_sample=sampled, top_k=0, temperature=0.7 if sampled else None)
    run = theirs(model_of(name), prompts(batch), 3, **call)
    out = ours(model_of(name), prompts(batch), 3, {"method": method, **METHODS[method]}, **call)
    assert_same(out.ids, run, out.state)
    assert out.report.drafted > 0 and not out.report.faults


@pytest.mark.parametrize("shape", ["any", "one"])
@pytest.mark.parametrize("method", ["layer-skip", "del"])
def test_a_drafted_unit_costs_every_layer_once(prompts: Callable, method: str, shape: str) -> None:
    """Units that go through each layer's attention: as many below the exit as above; with one shape, more below."""
    model, units = model_of("llama"), [0] * 4

    def count(number: int) -> Callable[..., None]:
        def hook(module: Any, args: Any, kwargs: Any) -> None:
            units[number] += kwargs["hidden_states"].shape[1]

        return hook

    with mmspec.enable(model, method, shape=shape, **METHODS[method]) as spec:
        model.generate(**prompts(3), max_new_tokens=2)  # the self-check
        layers = model.model.layers
        hooks = [
            layer.self_attn.register_forward_pre_hook(count(i), with_kwargs=True) for i, layer in enumerate(layers)
        ]
        model.generate(**prompts(3), max_new_tokens=40, do_sample=False)
        for hook in hooks:
            hook.remove()
        assert spec.report.drafted > 20 and not spec.report.faults
    assert len(set(units)) == 1 if shape == "any" else units[0] > units[3]


def test_a_rule_that_reads_states_has_all_layers_run(prompts: Callable, theirs: Callable, ours: Callable) -> None:
    target = decoder_for(model_of("llama"), "plain").target.with_hidden([FINAL])
    drafter = LayerSkip(LayerSkipOptions(exit=3))
    out = Decoder(target, drafter, k=3).generate(prompts(3), 20)
    plain = decoder_for(model_of("llama"), "plain").generate(prompts(3), 20)
    assert [row.tolist() for row in out.units] == [row.tolist() for row in plain.units] and not out.report.faults


@pytest.mark.slow
def test_under_a_rule_that_needs_distributions_drafts_have_them(prompts: Callable) -> None:
    with mmspec.enable(model_of("llama"), "layer-skip", rule="rejection", k=3, exit=3) as spec:
        model_of("llama").generate(**prompts(3), max_new_tokens=24, do_sample=True, top_k=0)
        assert spec.report is not None and spec.report.accepted > 0 and not spec.report.faults


def test_what_cannot_draft_for_itself(make_llama: Callable) -> None:
    with pytest.raises(ValueError, match="a model of 4 layers can be left behind layer 1 to 3, not 4"):
        mmspec.enable(model_of("llama"), "layer-skip", exit=4)
    with pytest.raises(ValueError, match="a model of 4 layers can be left behind layer 1 to 3, not 9"):
        mmspec.enable(model_of("llama"), "del", latest=9)
    with pytest.raises(ValueError, match="skip"):
        mmspec.enable(model_of("llama"), "swift", skip=1.0)
    with pytest.raises(ValueError, match="swift keeps the first and the last layer, and the target has 2 layers"):
        mmspec.enable(make_llama(), "swift")
    opt = OPTConfig(vocab_size=131, hidden_size=32, num_hidden_layers=4, ffn_dim=48, num_attention_heads=4)
    with pytest.raises(ValueError, match="its sub-layers cannot be left out one by one; layer-skip and del"):
        mmspec.enable(random_model(opt), "swift")
    sizes = {name: size for name, size in SIZES.items() if name != "head_dim"}
    hybrid = BambaConfig(**sizes, mamba_n_heads=8, mamba_d_head=8, mamba_d_state=8, attn_layer_indices=[1])
    with pytest.raises(ValueError, match="own cache, whose recurrent layers"):
        mmspec.enable(random_model(hybrid), "layer-skip")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
