"""Quantised models: what is promised of them, and what is still refused."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mmspec
from mmspec.core.report import Report
from mmspec.hosts import quantised_layers
from mmspec.hosts.model_info import ModelInfo
from mmspec.hosts.passes import Passes
from mmspec.hosts.quantised_layers import NONE, QuantisedLayers
from mmspec.hosts.self_check import examine
from mmspec.hosts.slot_cache import SlotCache
from tests.text.test_rounding import see_siblings


class Quantised(nn.Module):
    """A linear layer that rounds its inputs to int8, by the largest number of every row."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias

    def largest(self, x: Tensor) -> Tensor:
        return x.abs().amax(-1, keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.largest(x).clamp(min=1e-9) / 127
        return nn.functional.linear((x / scale).round() * scale, self.weight, self.bias)


class ByPass(Quantised):
    """The same by the largest number of the whole pass."""

    def largest(self, x: Tensor) -> Tensor:
        return x.abs().amax()


class Half(Quantised):
    """A linear layer that computes in bfloat16 inside of a float32 model."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x.bfloat16(), self.weight.bfloat16()).to(x.dtype)


class Shifted(Quantised):
    """A layer that rounds its inputs, and adds those of the row before: no tree goes through it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + nn.functional.pad(x, (0, 0, 1, 0))[:, :-1])


class Pooled(Quantised):
    """A layer that rounds its inputs, and adds the largest ones of the pass."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + super().forward(x.amax(1, keepdim=True))


def quantise(model: Any, kind: type[Quantised]) -> Any:
    """Put layers of a kind in the place of a model's linear ones, all but its head."""
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is nn.Linear and name != "lm_head":
                setattr(parent, name, kind(layer))
    return model


@pytest.fixture(params=[False, True], ids=["by row", "by pass"])
def shared(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def quantised(make_llama: Callable, shared: bool) -> Any:
    return quantise(make_llama(num_hidden_layers=6), ByPass if shared else Quantised)


def test_the_layers_are_found_and_what_decides_their_rounding(quantised: Any, shared: bool) -> None:
    found = QuantisedLayers.of(quantised)
    assert len(found.names) == 6 * 7 and found.activations and found.shared == shared


def test_layers_of_half_precision_are_no_quantised_ones(make_llama: Callable) -> None:
    model = quantise(make_llama(), Half)
    found = QuantisedLayers.of(model)
    assert found.names and not found.activations and not found.warning
    assert QuantisedLayers.of(model.bfloat16()) == NONE


class Scaled(Quantised):
    """A layer with a weight in int8, as weight-only formats have."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer)
        self.scale = nn.Parameter(layer.weight.detach().abs().amax(1) / 127)
        whole = (layer.weight.detach() / self.scale[:, None]).round().to(torch.int8)
        self.weight = nn.Parameter(whole, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype)) * self.scale


class Doubled(Quantised):
    """A linear layer of a user, with a plain weight."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * nn.functional.linear(x, self.weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_that_are_as_precise_as_their_model(make_llama: Callable, dtype: torch.dtype) -> None:
    found = QuantisedLayers.of(quantise(make_llama(), Scaled).to(dtype))
    assert found.names and not found.activations and not found.shared
    assert QuantisedLayers.of(quantise(make_llama(), Doubled).to(dtype)) == NONE


def test_weights_alone_leave_the_promise_as_it_is(make_llama: Callable, recwarn: Any) -> None:
    model, ids = quantise(make_llama(), Scaled), torch.arange(3, 15).repeat(2)[None]
    own = model.generate(ids, max_new_tokens=12)
    with mmspec.enable(model, "prompt-lookup") as spec:
        assert torch.equal(model.generate(ids, max_new_tokens=12), own)
    assert spec.report.exactness == "invariant" and not spec.report.rounded
    assert not [each for each in recwarn if "quantise" in str(each.message)]


def test_the_layer_inside_an_adapter_is_replaced_and_the_adapter_is_not(make_llama: Callable) -> None:
    class Adapter(nn.Module):
        def __init__(self, layer: Quantised) -> None:
            super().__init__()
            self.in_features, self.out_features, self.base_layer = layer.in_features, layer.out_features, layer

        def forward(self, x: Tensor) -> Tensor:
            return self.base_layer(x)

    model = quantise(make_llama(), Quantised)
    model.model.layers[0].mlp.up_proj = Adapter(model.model.layers[0].mlp.up_proj)
    names = QuantisedLayers.of(model).names
    assert "model.layers.0.mlp.up_proj.base_layer" in names and "model.layers.0.mlp.up_proj" not in names


def test_a_model_that_quantises_activations_is_taken(quantised: Any) -> None:
    """Its own passes of two widths differ by more than a float32 model's may, and no wrong mask explains it."""
    ids = torch.arange(3, 33)[None]
    with torch.no_grad():
        noise = (quantised(ids).logits[:, 5] - quantised(ids[:, :6]).logits[:, 5]).abs().max()
    found = examine(ModelInfo.of(quantised))
    assert found.manner == "interface" and found.error <= found.tolerance < 1e-2
    assert noise > found.tolerance or not found.quantised.shared


def wrong_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: nodes have the positions of their slots."""
    monkeypatch.setattr(
        Passes,
        "_positions",
        lambda passes, cache, depth, valid: cache.length[:, None] + torch.arange(depth.shape[1]).expand_as(depth),
    )


def stale_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: a commit keeps one unit too many."""
    commit = SlotCache.commit
    monkeypatch.setattr(SlotCache, "commit", lambda cache, path, count: commit(cache, path, count + 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mutant", [see_siblings, wrong_positions, stale_keys])
def test_what_is_wrong_in_a_quantised_model_is_refused(
    quantised: Any, mutant: Callable, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = examine(ModelInfo.of(quantised.to(dtype)))
    mutant(monkeypatch)
    found = examine(ModelInfo.of(quantised))
    assert right.manner is not None and right.error < 0.6 * right.tolerance
    assert found.manner is None and found.error > 1.2 * found.tolerance
    with pytest.raises(
        ValueError, match=r"so it is refused: logits of tree nodes differ.*stand-ins took the places of its 42"
    ):
        mmspec.enable(quantised, "plain")


@pytest.mark.parametrize("kind", [Shifted, Pooled])
def test_rounding_layers_that_mix_rows_are_refused(make_llama: Callable, kind: type[Quantised]) -> None:
    model = quantise(make_llama(), kind)
    assert QuantisedLayers.of(model) == NONE
    with pytest.raises(ValueError, match="so it is refused"):
        mmspec.enable(model, "plain")


def test_the_promise_is_said_once_and_in_the_report(quantised: Any, shared: bool) -> None:
    depends = "what else is in its pass" if shared else "the width of its pass"
    warning = pytest.warns(UserWarning, match=f"42 layers of this model quantise .* depend on {depends}")
    with mmspec.enable(quantised, "prompt-lookup") as spec, warning as caught:
        quantised.generate(torch.arange(3, 15)[None], max_new_tokens=6)
    report = spec.report
    assert sum("quantise" in str(each.message) for each in caught) == 1
    assert str(report).startswith("prompt-lookup (lossless up to the rounding of quantised activations):")
    assert report.shape.startswith("with plain in distribution up to the rounding of quantised activations")
    assert report.to_dict()["rounded"] and Report.total([report, Report()]).rounded


@pytest.mark.parametrize("method", ["prompt-lookup", "token-recycling"])
@pytest.mark.filterwarnings("ignore:42 layers")
def test_one_shape_is_a_promise_where_rows_round_by_themselves(quantised: Any, shared: bool, method: str) -> None:
    ids, texts = torch.arange(3, 15).repeat(2)[None], []
    for name in (method, "plain"):
        with mmspec.enable(quantised, name, shape=80) as spec:
            texts.append(quantised.generate(ids, max_new_tokens=24))
        assert spec.report.width == (None if shared else 80)
        assert spec.report.exactness == ("lossless" if shared else "invariant")
    assert shared or torch.equal(*texts)


def test_lengths_that_follow_the_clock_do_not_repeat_such_a_text(quantised: Any) -> None:
    with mmspec.enable(quantised, "prompt-lookup", policy="goodput") as spec, pytest.warns(UserWarning, match="quanti"):
        quantised.generate(torch.arange(3, 15)[None], max_new_tokens=4)
    assert not spec.report.repeatable


def test_torchs_own_dynamic_quantisation(make_llama: Callable) -> None:
    try:
        model = torch.ao.quantization.quantize_dynamic(make_llama(), {nn.Linear}, dtype=torch.qint8)
    except (AttributeError, RuntimeError) as error:
        pytest.skip(f"this torch has no dynamic quantisation: {error}")
    with mmspec.enable(model, "prompt-lookup") as spec, pytest.warns(UserWarning, match="what else is in its pass"):
        model.generate(torch.arange(3, 15)[None], max_new_tokens=6)
    assert spec.report.rounded


def test_another_thread_runs_the_live_layers(quantised: Any) -> None:
    ids = torch.arange(3, 15)[None]
    with torch.no_grad(), ThreadPoolExecutor(1) as other:
        before = quantised(ids).logits
        with QuantisedLayers.of(quantised).replaced(quantised):
            assert not torch.equal(quantised(ids).logits, before)
            assert torch.equal(other.submit(torch.no_grad()(quantised), ids).result().logits, before)
        assert torch.equal(quantised(ids).logits, before)


def test_embeddings_as_a_prompt_of_a_quantised_model(quantised: Any) -> None:
    """Behind such a prompt the model's own steps are compared with ours, with stand-ins in both."""
    embeds = quantised.get_input_embeddings()(torch.arange(3, 15)[None]).detach()
    with mmspec.enable(quantised, "prompt-lookup"), pytest.warns(UserWarning, match="quantise"):
        assert quantised.generate(inputs_embeds=embeds, max_new_tokens=5).shape == (1, 5)


def test_weights_that_move_are_moved_outside_of_inference_mode(make_llama: Callable) -> None:
    """torchao's tensors know no copy in inference mode."""
    accelerate = pytest.importorskip("accelerate")
    model, ids, modes = quantise(make_llama(), Scaled), torch.arange(3, 15)[None], set()
    own = model.generate(ids, max_new_tokens=6)
    for parent in model.modules():
        if isinstance(parent, Scaled):
            parent.register_forward_pre_hook(lambda *_: modes.add(torch.is_inference_mode_enabled()))
    accelerate.cpu_offload(model)
    with mmspec.enable(model, "prompt-lookup"):
        assert torch.equal(model.generate(ids, max_new_tokens=6), own)
    assert modes == {False}


def test_the_mark_of_a_dequantised_file_is_no_obstacle(make_llama: Callable) -> None:
    """transformers leaves both on a model that it read by gguf_file=."""
    model, ids = make_llama(), torch.arange(3, 15)[None]
    own = model.generate(ids, max_new_tokens=6)
    model.config.quantization_config, model.hf_quantizer = {"quant_method": "gguf"}, object()
    with mmspec.enable(model, "prompt-lookup") as spec:
        assert torch.equal(model.generate(ids, max_new_tokens=6), own)
    assert spec.report.exactness == "invariant" and QuantisedLayers.of(model) == NONE


def test_a_ranks_part_of_a_weight_is_not_quantised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of tensor parallel models have a class of their own, and their layers run among all ranks alone."""

    class Part(nn.Parameter):
        pass

    layer = nn.Linear(16, 16)
    layer.weight = Part(layer.weight.data)
    assert not quantised_layers._is_plain(layer)
    monkeypatch.setattr(quantised_layers, "is_cut", lambda weight: isinstance(weight, Part))
    assert quantised_layers._is_plain(layer)
