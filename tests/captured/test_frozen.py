"""Compiled rounds that bake in the weights: which models, and what happens when weights change."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code
from transformers import LlamaConfig

from mmspec.api.build import decoder_for
from mmspec.core import frozen
from mmspec.core.compile.pool import NAME, Pool
from mmspec.core.compile.rounds import CapturedRound
from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.hosts.slot_layer import SlotLayer
from mmspec.testing.tiny_models import SIZES
from tests.support.random_models import random_model

CONFIG = LlamaConfig(**{**SIZES, "num_hidden_layers": 1, "vocab_size": 61, "hidden_size": 32, "num_attention_heads": 4})


@pytest.fixture
def model() -> Any:
    return random_model(CONFIG, gain=4.0)


def prompt() -> Tensor:
    return torch.randint(2, 61, (1, 5), generator=torch.Generator().manual_seed(1)).repeat(1, 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [127, 2048, 8192])
def test_in_half_precision_one_number_is_seen_in_a_row_of_any_length(dtype: torch.dtype, width: int) -> None:
    torch.manual_seed(0)
    rows, weight = torch.arange(512), torch.randn(512, width).to(dtype)
    before = frozen.checksum(weight)
    assert torch.equal(before, frozen.checksum(weight.clone()))
    for factor in (2.0, 1.1, 0.9, 1.01, -1.0):
        written, column = weight.clone(), torch.randint(0, width, (512,))
        written.data[rows, column] *= factor
        changed = (written != weight).any(1)
        assert changed.sum() > 500 and bool((frozen.checksum(written) != before)[changed].all()), factor


def pool(model: Any) -> Pool:
    found: Pool = vars(model)[NAME]
    return found


def text(decoder: Decoder, **options: Any) -> list[int]:
    output = decoder.generate(prompt(), 16, seed=3, **options)
    assert output.report.compiled == (decoder.compile is True)
    return [int(unit) for unit in output.units[0]]


def test_which_models_are_frozen(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert frozen.freezable(model)
    assert not frozen.freezable(random_model(CONFIG).to(torch.bfloat16))
    monkeypatch.setattr(frozen, "MOST", sum(weight.nbytes for weight in model.parameters()) - 1)
    assert not frozen.freezable(model)


@pytest.mark.parametrize("written", ["counted", "uncounted", "swapped", "replaced"])
def test_every_change_of_weights_is_noticed(model: Any, written: str) -> None:
    before = frozen.numbers(model)
    assert before == frozen.numbers(model)
    layer = model.model.layers[0].mlp.up_proj
    if written == "counted":
        with torch.no_grad():
            layer.weight[3, 5] += 0.5
    elif written == "uncounted":
        layer.weight.data[3, 5] += 0.5
    elif written == "swapped":
        layer.weight.data[[0, 1]] = layer.weight.data[[1, 0]].clone()
    else:
        layer.weight = torch.nn.Parameter(layer.weight.detach().clone())
    assert before != frozen.numbers(model)


def test_weights_that_changed_are_not_frozen_again(model: Any) -> None:
    compiled, eager = decoder_for(model, "plain", shape=2, compile=True), decoder_for(model, "plain")
    assert text(compiled) == text(eager)
    (first,) = pool(model).rounds
    assert first.plan.frozen
    model.lm_head.weight.data.copy_(model.lm_head.weight.data.flip(0))
    assert text(compiled) == text(eager)
    (second,) = pool(model).rounds
    assert second is not first and not second.plan.frozen
    model.lm_head.weight.data.copy_(model.lm_head.weight.data.flip(0))
    assert text(compiled) == text(eager)
    assert pool(model).rounds == [second]


def test_half_precision_is_not_frozen(model: Any) -> None:
    compiled = decoder_for(model.to(torch.bfloat16), "plain", shape=2, compile=True)
    text(compiled)
    assert not pool(model).rounds[0].plan.frozen


@pytest.mark.slow
def test_frozen_rounds_decode_the_same_text(model: Any, inductor: None, capfd: pytest.CaptureFixture[str]) -> None:
    compiled, eager = decoder_for(model, "prompt-lookup", k=3, compile=True), decoder_for(model, "plain")
    assert text(compiled) == text(eager)
    assert pool(model).rounds[0].plan.frozen
    printed = capfd.readouterr()
    assert "AUTOTUNE" not in printed.err + printed.out


@pytest.mark.parametrize(
    ("dtype", "shape", "sizes"),
    [
        (torch.float32, None, {1, 6}),
        pytest.param(torch.float32, "one", {6}, marks=pytest.mark.slow),
        pytest.param(torch.bfloat16, None, {6}, marks=pytest.mark.slow),
    ],
)
def test_rounds_without_a_draft_have_one_node_where_nothing_is_promised_of_the_shape(
    model: Any, dtype: torch.dtype, shape: Any, sizes: set[int]
) -> None:
    half = model.to(dtype)
    compiled = decoder_for(half, "prompt-lookup", k=5, shape=shape, compile=True)
    output = compiled.generate(prompt(), 40, seed=1, warp=Warp.sampling(1.0))
    assert output.report.compiled and set(output.report.sizes) == sizes
    assert (output.report.width is None) == (len(sizes) > 1)
    expected = decoder_for(half, "plain", shape=output.report.width or "any").generate(
        prompt(), 40, seed=1, warp=Warp.sampling(1.0)
    )
    assert torch.equal(output.units[0], expected.units[0])


def test_plain_decoding_is_compiled_once(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its round is the round without a draft."""
    warm, seen = CapturedRound.warm, list[int]()

    def counted(self: CapturedRound) -> None:
        seen.append(self.plan.nodes)
        warm(self)

    monkeypatch.setattr(CapturedRound, "warm", counted)
    assert decoder_for(model, "plain", compile=True).generate(prompt(), 8, seed=1).report.compiled
    assert seen == [1]


def test_a_lone_round_that_cannot_be_compiled_is_as_wide_as_the_others(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm = CapturedRound.warm

    def failing(self: CapturedRound) -> None:
        if self.plan.nodes == 1:
            raise MemoryError("none left\nat all")
        warm(self)

    captured = decoder_for(model, "prompt-lookup", k=5, compile=True)
    expected = decoder_for(model, "plain").generate(prompt(), 40, seed=1, warp=Warp.sampling(1.0))
    monkeypatch.setattr(CapturedRound, "warm", failing)
    with pytest.warns(UserWarning, match="as many nodes as the others: MemoryError: none left$"):
        output = captured.generate(prompt(), 40, seed=1, warp=Warp.sampling(1.0))
    assert output.report.compiled and set(output.report.sizes) == {6}
    assert torch.equal(output.units[0], expected.units[0])


@pytest.mark.slow
def test_compiled_writes_are_in_place() -> None:
    """A pass that copies all slots of a layer reads and writes as much as a large share of the weights."""

    class Owner:
        most = capacity = visible = 512
        start = None
        slots = torch.tensor([[3, 4], [7, 8]])

    owner = Owner()  # which a layer does not keep alive
    layer = SlotLayer(owner)
    states = torch.randn(2, 4, 2, 16)
    layer.lazy_initialization(states, states)
    expected = torch.zeros(2, 4, 512, 16)
    expected[0, :, 3:5], expected[1, :, 7:9] = states[0], states[1]
    _, code = run_and_get_code(torch.compile(lambda: layer.update(states, states)[0].sum()))
    assert torch.equal(layer.keys, expected) and torch.equal(layer.values, expected)
    assert "empty_strided_cpu((2, 4, 512, 16)" not in "".join(code)
