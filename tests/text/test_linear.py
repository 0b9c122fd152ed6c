"""Narrow passes multiply with laid out weights: the same numbers, never stale, and nothing left on the model."""

import gc
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mmspec
from mmspec.compare.equality import assert_same, stock
from mmspec.hosts import linear
from mmspec.hosts.linear import PATIENCE, RARELY, ROWS, TRIALS, Kernel, Trial, kernels, narrow, renew

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
    monkeypatch.setattr(linear, "trial_of", lambda kernels, rows: Trial(won=True))
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


HALF = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN multiplies no bfloat16 on this processor"
)


@HALF
def test_in_half_precision_no_clock_chooses(monkeypatch):
    """Rounding decides what is written: packed weights from the first pass to the last, and in every width."""
    monkeypatch.setattr(linear, "trial_of", None)
    net = nn.ModuleList([nn.Linear(512, 256), nn.Linear(256, 512)]).bfloat16()
    packed = kernels(net)
    assert len(packed) == 2 and not packed.timed
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


@pytest.fixture
def passing(monkeypatch):
    """Makes a pass over so many rows, on a clock of its own, and says whether its product was ours."""
    clock, net = SimpleNamespace(now=0.0), model()
    layers = kernels(net)
    monkeypatch.setattr(linear, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(linear, "_trials", {})

    def run(rows, slower):
        with torch.no_grad(), narrow(layers, rows):
            ours = isinstance(net["large"].__dict__.get("forward"), Kernel)
            net["large"](torch.ones(rows, 512))
            clock.now += 1.0 + (ours == slower)
        return ours

    run.laid_out = lambda: any(weight is net["large"].weight for weight in linear._packed)
    return run


@pytest.mark.parametrize("slower", [False, True], ids=["stock", "laid-out"])
def test_the_slower_product_is_left_alone(passing, slower):
    """The two take turns in passes that are made anyway, for shapes and a number of rows; then the faster one stays."""
    few = [passing(8, slower) for _ in range(2 * PATIENCE)]  # every second one would have been ours
    assert not any(few) and not passing.laid_out(), "few passes lay nothing out"
    turns = [passing(rows, slower) for rows in (8, 5, 7, 8, 6, 8, 8)]
    assert turns == [True, False, True, False, True, False, True]
    later = [passing(rows, slower) for rows in (5, 8, 7, 6) * 5]
    assert set(later[1:]) == {not slower}
    assert passing.laid_out() == (not slower), "copies that lost go, others stay"


@pytest.mark.parametrize("slower", [False, True], ids=["stock", "laid-out"])
def test_what_won_elsewhere_is_likely_to_win_here(passing, slower):
    """Passes over other numbers of rows begin with the winner, and try the other seldom; here too it may be faster."""
    settling = [passing(1, slower) for _ in range(60)]
    assert set(settling[45:]) == {not slower}
    turns = [passing(8, slower) for _ in range(100)]
    assert turns[: RARELY - 1] == [not slower] * (RARELY - 1), "the first passes are the likely winner's"
    assert turns.count(slower) == TRIALS + 1
    otherwise = [passing(64, not slower) for _ in range(100)]
    assert set(otherwise[90:]) == {slower}, "what holds for eight rows need not hold for 64"


def test_a_pass_that_fails_is_not_timed(passing, monkeypatch):
    net = model()
    for _ in range(3 * PATIENCE):
        with pytest.raises(RuntimeError), narrow(kernels(net), 3):
            raise RuntimeError
    (trials,) = linear._trials.values()
    assert not trials[3].timed and trials[3].won is None


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


def test_a_first_short_call_makes_its_own_passes_only(make_llama, monkeypatch):
    """Nothing is run, and by the self-check nothing laid out, only to find out what is faster."""
    monkeypatch.setattr(linear, "_trials", {})
    large, passes = make_llama(hidden_size=512, intermediate_size=512), []
    ids = torch.arange(5, 25)[None]
    large.lm_head.register_forward_hook(lambda *given: passes.append(1))
    with mmspec.enable(large) as spec:
        passes.clear()
        weights = {id(weight) for weight in large.parameters()}
        assert not [weight for weight in linear._packed if id(weight) in weights]
        large.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False)
    assert len(passes) == spec.report.rounds + 1, "one more: the prefill"
