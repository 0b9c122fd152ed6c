"""Narrow passes multiply with laid out weights: the same numbers, never stale, and nothing left on the model."""

import gc
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mmspec
from mmspec.hosts import linear
from mmspec.hosts.linear import ROWS, Kernel, kernels, narrow, renew
from mmspec.testing.equality import assert_same, stock

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 2), (1, ROWS), (7,), (2, 0)])
@pytest.mark.parametrize("bias", [True, False])
def test_it_is_linear(shape, bias):
    torch.manual_seed(0)
    layer, x = nn.Linear(300, 500, bias=bias), torch.randn(*shape, 300)
    with torch.inference_mode():
        for given in (x, x.mT.contiguous().mT if x.dim() > 1 else x):
            out, expected = Kernel(layer)(given), F.linear(given, layer.weight, layer.bias)
            assert out.shape == expected.shape
            torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


def test_weights_that_were_written_to_are_laid_out_anew():
    layer, x = nn.Linear(300, 500), torch.randn(3, 300)
    kernel = Kernel(layer)

    def right() -> None:
        torch.testing.assert_close(kernel(x), F.linear(x, layer.weight, layer.bias), rtol=1e-4, atol=1e-4)

    counted = [
        lambda: layer.weight.copy_(torch.randn(500, 300)),
        lambda: setattr(layer.weight, "data", torch.randn(500, 300)),
        lambda: setattr(layer, "weight", nn.Parameter(torch.randn(500, 300))),
        lambda: layer.load_state_dict({"weight": torch.randn(500, 300), "bias": torch.zeros(500)}),
    ]
    merged, permuted = torch.randn(500, 300), torch.randperm(300)
    uncounted = [
        lambda: layer.weight.data.add_(merged),
        lambda: layer.weight.data.copy_(layer.weight.data[:, permuted]),
        lambda: layer.weight.data.copy_(layer.weight.data.flip(0)),
    ]
    with torch.no_grad():
        right()
        for write in counted:
            write()
            right()
        for write in uncounted:
            write()
            renew([kernel])
            right()


@pytest.fixture
def always(monkeypatch):
    """Laid out weights pay, whatever this machine says."""
    monkeypatch.setattr(linear, "pays", lambda kernels, rows: True)


@pytest.mark.usefixtures("always")
def test_a_call_begins_by_looking_at_the_weights(make_llama):
    large = make_llama(hidden_size=512, intermediate_size=512)
    ids = torch.arange(5, 25)[None]
    call = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 8, "do_sample": False}
    with mmspec.enable(large, "plain"):
        large.generate(ids, **call)
        for weights in large.parameters():
            weights.data.neg_()
        ours = large.generate(ids, **call)
    assert_same(ours, stock(large, {"input_ids": ids}, 0, **call))


def test_copies_go_with_their_weights():
    gc.collect()
    before, layer = len(linear._packed), nn.Linear(300, 500)
    with torch.no_grad():
        for _ in range(2):  # calls of one model share copies
            Kernel(layer)(torch.randn(3, 300))
    assert len(linear._packed) == before + 1
    del layer
    gc.collect()
    assert len(linear._packed) == before


def model():
    return nn.ModuleDict(
        {
            "large": nn.Linear(512, 512),
            "small": nn.Linear(8, 8),
            "bf16": nn.Linear(512, 512).bfloat16(),
            "hooked": nn.Linear(512, 512),
        }
    )


@pytest.mark.usefixtures("always")
def test_only_large_plain_layers_take_part_and_only_inside(monkeypatch):
    net = model()
    net["hooked"].forward = lambda x: x
    assert [kernel.layer is net["large"] for kernel in kernels(net)] == [True]
    before = {name: dict(layer.__dict__) for name, layer in net.items()}
    with pytest.raises(RuntimeError), narrow(kernels(net), 1):
        assert isinstance(net["large"].forward, Kernel)
        raise RuntimeError
    assert {name: dict(layer.__dict__) for name, layer in net.items()} == before
    with narrow(kernels(net), ROWS + 1):
        assert "forward" not in net["large"].__dict__, "wide passes are left alone"
    monkeypatch.setattr(linear, "MOST", 4 * 512 * 512 - 1)
    assert not kernels(net), "no memory is given for a large model"


def test_compiled_models_are_left_alone():
    net = model()
    net._compiled_call_impl = SimpleNamespace()
    assert not kernels(net)


@pytest.mark.parametrize("slower", [0, 1], ids=["stock", "laid-out"])
def test_the_slower_product_is_left_alone(monkeypatch, slower):
    """Which one is timed once for shapes and a number of rows; a pass then goes the other way."""
    asked = []

    def sweep(layers, given):
        asked.append(len(given[0]))
        return float(isinstance(layers[0], Kernel) == slower)

    monkeypatch.setattr(linear, "_sweep", sweep)
    monkeypatch.setattr(linear, "_timed", {})
    net = model()
    for rows in (5, 8, 7):
        with narrow(kernels(net), rows):
            assert isinstance(net["large"].forward, Kernel) == (not slower)
    assert not slower or not [w for w in linear._packed if w is net["large"].weight], "copies that lost stay"
    assert set(asked) == {8} and len(asked) == 2 * (linear.TRIALS + 1), "timed once, for eight rows"
    with narrow(kernels(net), 9):
        assert set(asked) == {8, 16}


@pytest.mark.usefixtures("always")
def test_a_model_decodes_through_it(make_llama, monkeypatch):
    seen = []
    multiply = Kernel.__call__
    monkeypatch.setattr(Kernel, "__call__", lambda kernel, x: seen.append(x.shape[1]) or multiply(kernel, x))
    large = make_llama(hidden_size=512, intermediate_size=512)
    ids = torch.arange(5, 25)[None]
    call = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "do_sample": False}
    expected = stock(large, {"input_ids": ids}, 0, **call)
    with mmspec.enable(large, "prompt-lookup", k=3):
        assert_same(large.generate(ids, **call), expected)
    assert 1 in seen and all("forward" not in layer.__dict__ for layer in large.modules())
