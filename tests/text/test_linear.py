"""Narrow passes multiply with laid out weights: the same numbers, never stale, and nothing left on the model."""

import copy
import gc
import pickle
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mmspec
from mmspec.compare.equality import assert_same, stock
from mmspec.hosts import linear
from mmspec.hosts.linear import FEWEST_ON_INTEL, PATIENCE, ROWS, Kernel, kernels, narrow, renew
from tests.support.half import HALF

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
    """Passes take oneDNN's product, whatever this processor is."""
    monkeypatch.setenv("MMSPEC_PRODUCTS", "packed")
    monkeypatch.setattr(linear, "PATIENCE", 0)


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


@HALF
def test_in_half_precision_packed_weights_are_used_from_the_first_pass_on(monkeypatch):
    net = nn.ModuleList([nn.Linear(512, 256), nn.Linear(256, 512)]).bfloat16()
    packed = kernels(net)
    assert len(packed) == 2 and not packed.single
    for rows in (1, 7, ROWS):
        with narrow(packed, rows):
            assert all(isinstance(layer.forward, Kernel) for layer in net)
    with narrow(packed, ROWS + 1):
        assert not any("forward" in layer.__dict__ for layer in net)
    monkeypatch.setattr(linear, "MOST", sum(layer.weight.nbytes for layer in net) - 1)
    assert not kernels(net)


@HALF
@torch.no_grad()
def test_half_precision_rounds_like_torchs_own_product_and_is_never_stale():
    torch.manual_seed(0)
    layer, x = nn.Linear(300, 500).bfloat16(), torch.randn(3, 300).bfloat16()
    kernel = Kernel(layer)
    for write in (
        lambda: None,
        lambda: layer.weight.data.neg_(),
        lambda: layer.weight.data[7].mul_(1.01),
        lambda: layer.weight.data.copy_(layer.weight.data.flip(1)),
    ):
        write()
        renew([kernel])
        torch.testing.assert_close(kernel(x), F.linear(x, layer.weight, layer.bias), rtol=1e-2, atol=1e-2)


def test_compiled_models_are_left_alone():
    net = model()
    net._compiled_call_impl = SimpleNamespace()
    assert not kernels(net)


def forwards(net, rows, **how):
    """The forwards of the large layer in some passes over so many rows: how many were packed, unpacked, its own."""
    layers, seen = kernels(net), []
    for _ in range(PATIENCE + 2):
        with torch.no_grad(), narrow(layers, rows, **how):
            seen.append(net["large"].__dict__.get("forward"))
            net["large"](torch.ones(rows, 512))
    return [isinstance(forward, Kernel) for forward in seen].count(True), seen.count(None)


@pytest.mark.parametrize(("name", "fewest"), [("Intel(R) Xeon(R)", FEWEST_ON_INTEL), ("AMD EPYC", 1), ("", 1)])
def test_a_rule_chooses_and_no_clock(monkeypatch, name, fewest):
    """The processor's maker and the rows of a pass decide; the first passes over several rows lay nothing out."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"cpu_name": name})
    every = PATIENCE + 2
    assert kernels(model()).fewest == fewest and str(fewest) * (fewest > 1) in kernels(model()).named(False)
    assert forwards(model(), 1) == ((every, 0) if fewest == 1 else (0, every))
    assert forwards(model(), 3) == ((2, 0) if fewest == 1 else (0, every))
    assert forwards(model(), 4) == (2, 0), "packing waits, and oneDNN's product is taken at once"
    monkeypatch.setenv("MMSPEC_PRODUCTS", "torch")
    assert forwards(model(), 4) == (0, every) and not kernels(model()).named(False)
    monkeypatch.setenv("MMSPEC_PRODUCTS", "packed")
    assert forwards(model(), 1) == (every, 0)
    monkeypatch.setenv("MMSPEC_PRODUCTS", "pack")
    with pytest.raises(ValueError, match="did you mean 'packed'"):
        forwards(model(), 1)


@pytest.mark.usefixtures("always")
def test_passes_of_one_shape_pack_at_once_or_leave_few_weights_to_the_compiler(monkeypatch):
    every = PATIENCE + 2
    assert forwards(model(), 4, fixed=True) == (0, every)
    monkeypatch.setattr(linear.frozen, "MOST", 0)
    assert forwards(model(), 4, fixed=True) == (every, 0)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=HALF)])
@torch.no_grad()
def test_the_first_passes_have_the_numbers_of_the_later_ones(dtype):
    """To the bit, over any number of rows: what is not packed yet, what is packed, and what was traced."""
    torch.manual_seed(0)
    for out, width in ((300, 500), (576, 1536), (64, 4096)):
        layer = nn.Linear(width, out).to(dtype)
        kernel, x = Kernel(layer), torch.randn(33, width).to(dtype)
        for rows in (1, 2, 3, 5, 8, 33):
            first, later = kernel.unpacked(x[:rows]), kernel(x[:rows])
            assert torch.equal(first, later)
            assert torch.equal(later, torch.ops.mmspec.packed_linear(x[:rows], layer.weight, layer.bias))
            assert rows == 1 or torch.equal(later, kernel(x)[:rows])


@pytest.mark.usefixtures("always")
def test_what_is_packed_does_not_travel():
    net = model()
    layers = kernels(net)
    with torch.no_grad(), narrow(layers, 1):
        net["large"](torch.ones(1, 512))
    for other in (copy.deepcopy((net, layers)), pickle.loads(pickle.dumps((net, layers)))):
        assert other[1][0].layer is other[0]["large"] and other[1][0].packed is None


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


def test_a_first_short_call_makes_its_own_passes_only(make_llama):
    """Nothing is run, and by the self-check nothing laid out, only to find out what is faster."""
    large, passes = make_llama(hidden_size=512, intermediate_size=512), []
    ids = torch.arange(5, 25)[None]
    large.lm_head.register_forward_hook(lambda *given: passes.append(1))
    with mmspec.enable(large) as spec:
        passes.clear()
        weights = {id(weight) for weight in large.parameters()}
        assert not [weight for weight in linear._packed if id(weight) in weights]
        large.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False)
    assert len(passes) == spec.report.rounds + 1, "one more: the prefill"
