"""Recorded passes in half precision join what follows from one another: the same numbers, in a third fewer launches.

A CPU records here, with stand-ins for the kernels of layers, and multiplies joined weights to the bits of single ones.
"""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    CohereConfig,
    GemmaConfig,
    LlamaConfig,
    PhiConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
)

import mmspec
from mmspec.api.build import decoder_for
from mmspec.core.compile import captured
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft
from mmspec.core.warp import Warp
from mmspec.hosts import joined
from mmspec.hosts.fused_layers import FusedLayers
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.target import TransformersTarget
from tests.captured.conftest import kept_for
from tests.captured.test_text import ragged
from tests.support.layer_kernels import layer_kernels
from tests.support.random_models import random_model
from tests.text.test_launches import PROMPT, SIZES, TREES, Launches

KINDS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "Llama": (LlamaConfig, {}),
    "biases": (Qwen2Config, {}),
    "norms of heads": (Qwen3Config, {}),
    "MLP beside attention": (CohereConfig, {}),
    "experts": (
        Qwen2MoeConfig,
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 24,
        },
    ),
    "another norm and activation": (GemmaConfig, {}),
    "another MLP": (PhiConfig, {}),
}


@pytest.fixture(autouse=True)
def _recording(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This device records, and runs kernels of layers; earlier tests have left nothing."""
    gc.collect()
    monkeypatch.setattr(captured, "RECORDING", ("cpu",))
    with layer_kernels():
        yield


def model_of(kind: str = "Llama", layers: int = 2, gain: float = 4.0) -> Any:
    config, more = KINDS[kind]
    return random_model(config(**{**SIZES, "num_hidden_layers": layers, **more}), gain=gain).bfloat16()


def passed(model: Any, parents: list[int], apart: bool = False) -> tuple[Tensor, int, FusedLayers]:
    """Logits and launches of a pass as it is recorded, over a tree; `apart`: nothing is joined in it."""
    target = TransformersTarget(model)
    prefill = target.start_fixed({"input_ids": torch.arange(PROMPT)[None] % 50 + 3}, 100, len(parents))
    held = target.held(prefill.cache, len(parents))
    held.fall_back()
    fused = held.slots.fused
    if apart:
        held.slots.fused = FusedLayers.of(model)
    held, index = held.load(prefill.cache), TreeIndex.static(parents)
    target.expect(held, index)
    units = torch.arange(len(parents))[None] % 50 + 3
    draft = Draft(units, index, torch.ones_like(units, dtype=torch.bool))
    with torch.no_grad(), target.ready(held, len(parents)):
        target.forward(held, draft)
        with Launches() as launches:
            logits = target.forward(held, draft).logits
    return logits, launches.number, fused


@pytest.mark.parametrize("tree", ["one node", "a tree of 16"])
@pytest.mark.parametrize("kind", ["Llama", "biases", "norms of heads"])
def test_a_layer_has_a_third_fewer_launches(kind: str, tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlotCache, "exact", False)  # as on a GPU, where no pass sums in float64
    few, more, parents = model_of(kind, 2), model_of(kind, 4), TREES[tree]
    joint, single = ((passed(more, parents, apart)[1] - passed(few, parents, apart)[1]) / 2 for apart in (False, True))
    assert joint <= 0.7 * single
    assert kind == "norms of heads" or joint == (11 if len(parents) == 1 else 12)


@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_are_those_of_single_launches(kind: str) -> None:
    model = model_of(kind)
    found, launches, _ = passed(model, TREES["a tree of 16"])
    expected, single, _ = passed(model, TREES["a tree of 16"], apart=True)
    assert torch.equal(found, expected) and launches < single


def _keeping(model: Any, kept: list[Tensor]) -> None:
    model.model.layers[0].mlp.act_fn.register_forward_hook(lambda module, given, out: kept.append(out))
    model.model.layers[1].register_forward_hook(lambda module, given, out: kept.append(out))


def halved(x: Tensor) -> None:
    x.mul_(0.5)


def _writing(model: Any, kept: list[Tensor]) -> None:
    model.model.layers[0].mlp.up_proj.register_forward_hook(lambda module, given, out: out.mul_(1.5))
    model.model.layers[0].mlp.gate_proj.register_forward_hook(lambda module, given, out: out.add_(0.5))
    model.model.layers[0].self_attn.q_proj.register_forward_hook(lambda module, given, out: halved(given[0]))


def _replacing(model: Any, kept: list[Tensor]) -> None:
    model.model.layers[0].self_attn.k_proj.register_forward_pre_hook(lambda module, given: (given[0] * 2,))
    model.model.layers[0].self_attn.register_forward_hook(lambda module, given, out: (out[0] * 2, *out[1:]))
    model.model.layers[0].mlp.act_fn.register_forward_hook(lambda module, given, out: out + 1)


def _adapting(model: Any, kept: list[Tensor]) -> None:
    """As peft does."""
    layer = model.model.layers[0].self_attn
    a, b = (nn.Linear(*sizes, bias=False, dtype=torch.bfloat16) for sizes in ((32, 4), (4, 64)))
    layer.q_proj.register_forward_hook(lambda module, given, out: out + b(a(given[0])))


def _quantised(model: Any, kept: list[Tensor]) -> None:
    class Quantised(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, (self.weight * 4).round() / 4, self.bias)

    for layer in model.model.layers:
        layer.self_attn.k_proj.__class__ = Quantised


@pytest.mark.parametrize("change", [_keeping, _writing, _replacing, _adapting, _quantised])
def test_what_others_do_in_between_stays(change: Callable[[Any, list[Tensor]], None]) -> None:
    kept: list[list[Tensor]] = []
    logits = []
    for apart in (False, True):
        torch.manual_seed(0)
        model, seen = model_of(), list[Tensor]()
        change(model, seen)
        found, _, fused = passed(model, TREES["a chain of 16"], apart)
        assert fused.joined is not None and fused.joined._places
        logits.append(found)
        kept.append(seen[-2:])
    assert torch.equal(*logits) and all(map(torch.equal, *kept))


def test_code_that_needs_dense_rows_gets_them() -> None:
    model = model_of()
    for layer in model.model.layers:
        layer.self_attn.q_proj.register_forward_hook(lambda module, given, out: out.view(-1).view(out.shape))
    found, _, fused = passed(model, TREES["a chain of 16"])
    assert fused.joined is not None and not fused.joined._places
    assert torch.equal(found, passed(model, TREES["a chain of 16"], apart=True)[0])


def test_large_weights_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined, "MOST", 1000)
    _, _, fused = passed(model_of(), TREES["one node"])
    assert fused.joined is not None and not fused.joined._places


@pytest.mark.parametrize("method", ["prompt-lookup", "token-recycling"])
def test_texts_are_plains_of_that_width(method: str) -> None:
    """To the bit, because plain decoding goes through the same passes."""
    model = model_of()
    recorded = decoder_for(model, method, k=4)
    plain = decoder_for(model, "plain", shape=recorded.one_width())
    for temperature in (0.0, 0.9):
        call: dict[str, Any] = {"seed": 3, "warp": Warp.sampling(temperature)}
        found, expected = (decoder.generate(ragged(), 24, **call) for decoder in (recorded, plain))
        assert found.report.recorded and expected.report.recorded
        assert all(map(torch.equal, found.units, expected.units))
    assert joined._products, "products were joined"


def test_nothing_is_joined_in_float32() -> None:
    model = model_of().float()
    expected = model.generate(**ragged(), max_new_tokens=16, do_sample=False)
    with mmspec.enable(model, "prompt-lookup", k=4) as handle:
        found = model.generate(**ragged(), max_new_tokens=16, do_sample=False)
        assert handle.report.recorded and not joined._products
    assert torch.equal(found, expected)


def test_the_model_stays_as_it_is(tmp_path: Any) -> None:
    """In the block and behind it: its weights, where they lie, what it writes to a file and to a text."""
    model = model_of("biases")
    weights = {name: (weight, weight.data_ptr()) for name, weight in model.named_parameters()}
    expected = model.generate(**ragged(), max_new_tokens=16, do_sample=False)

    def stays() -> bool:
        names = dict(model.named_parameters())
        return names.keys() == weights.keys() and all(
            own is names[name] and own.data_ptr() == place for name, (own, place) in weights.items()
        )

    with mmspec.enable(model, "prompt-lookup", k=4) as handle:
        model.generate(**ragged(), max_new_tokens=16, do_sample=False)
        assert handle.report.recorded and joined._products and stays()
        model.save_pretrained(tmp_path)
    gc.collect()
    assert stays() and not joined._products, "copies are freed with the rounds"
    assert torch.equal(model.generate(**ragged(), max_new_tokens=16, do_sample=False), expected)
    again = type(model).from_pretrained(tmp_path, dtype=torch.bfloat16).state_dict()
    assert all(torch.equal(again[name], value) for name, value in model.state_dict().items())


def test_written_weights_are_copied_again() -> None:
    """Also through `.data`, which torch does not count."""
    model = model_of("biases")
    recorded = decoder_for(model, "prompt-lookup", k=4)
    before = recorded.generate(ragged(), 20, warp=Warp.sampling(0))
    known = kept_for(model)
    attention = model.model.layers[0].self_attn
    attention.q_proj.weight.data.mul_(1.5)
    attention.v_proj.bias.data.add_(0.5)
    found = recorded.generate(ragged(), 20, warp=Warp.sampling(0))
    expected = decoder_for(model, "plain", shape=5, compile=False).generate(ragged(), 20, warp=Warp.sampling(0))
    assert found.report.recorded and kept_for(model) == known
    assert all(map(torch.equal, found.units, expected.units))
    assert not all(map(torch.equal, found.units, before.units))


@pytest.mark.slow
def test_what_is_compiled_joins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from mmspec.core.compile import launch

    monkeypatch.setattr(launch, "BACKEND", "eager")
    model = model_of()
    found = decoder_for(model, "prompt-lookup", k=4, compile=True).generate(ragged(), 8, warp=Warp.sampling(0))
    assert found.report.compiled
    torch._dynamo.reset()
