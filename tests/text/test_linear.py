"""Narrow passes multiply the other way round: the same numbers, and nothing left on the model."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mmspec
from mmspec.hosts import linear
from mmspec.hosts.linear import ROWS, linears, narrow, turned
from mmspec.testing.equality import assert_same, stock

pytestmark = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch calculates without MKL here")


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 2), (1, ROWS), (1, ROWS + 1)])
@pytest.mark.parametrize("bias", [True, False])
def test_turned_is_linear(shape, bias):
    torch.manual_seed(0)
    layer, x = nn.Linear(300, 500, bias=bias), torch.randn(*shape, 300)
    with torch.no_grad():
        out, expected = turned(layer, x), F.linear(x, layer.weight, layer.bias)
    assert out.shape == expected.shape and out.stride(-1) == 1
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def model():
    return nn.ModuleDict(
        {
            "large": nn.Linear(512, 512),
            "small": nn.Linear(8, 8),
            "bf16": nn.Linear(512, 512).bfloat16(),
            "hooked": nn.Linear(512, 512),
        }
    )


def test_only_large_plain_layers_take_part_and_only_inside():
    net = model()
    net["hooked"].forward = lambda x: x
    assert [layer is net["large"] for layer in linears(net)] == [True]
    before = {name: dict(layer.__dict__) for name, layer in net.items()}
    with pytest.raises(RuntimeError), narrow(linears(net), 1):
        assert net["large"].forward.func is turned
        raise RuntimeError
    assert {name: dict(layer.__dict__) for name, layer in net.items()} == before
    with narrow(linears(net), ROWS + 1):
        assert "forward" not in net["large"].__dict__, "wide passes are left alone"


def test_compiled_models_are_left_alone():
    net = model()
    net._compiled_call_impl = SimpleNamespace()
    assert not linears(net)


def test_a_model_decodes_through_it(make_llama, monkeypatch):
    seen = []
    monkeypatch.setattr(linear, "turned", lambda layer, x: seen.append(x.shape[1]) or turned(layer, x))
    large = make_llama(hidden_size=512, intermediate_size=512)
    ids = torch.arange(5, 25)[None]
    call = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "do_sample": False}
    expected = stock(large, {"input_ids": ids}, 0, **call)
    with mmspec.enable(large, "prompt-lookup", k=3):
        assert_same(large.generate(ids, **call), expected)
    assert 1 in seen and all("forward" not in layer.__dict__ for layer in large.modules())
