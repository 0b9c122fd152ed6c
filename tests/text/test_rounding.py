"""Models that round coarsely: autocast around binding and calls, TF32, depth, routers; and what is wrong there."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import mmspec
from mmspec.core.types import Draft
from mmspec.hosts import linear, self_check
from mmspec.hosts.linear import Kernel
from mmspec.hosts.masks import PassGeometry
from mmspec.hosts.model_info import ModelInfo
from mmspec.hosts.self_check import Finding, examine
from mmspec.hosts.target import TransformersTarget
from tests.support.zoo import build


def autocast(on: bool) -> Any:
    return torch.autocast("cpu", torch.bfloat16) if on else nullcontext()


@pytest.mark.parametrize("around", ["binding", "the call", "both"])
def test_autocast(around: str, make_llama: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits are those of the unmodified model under autocast, whose products packed weights do not make."""
    monkeypatch.setattr(linear, "SMALLEST", 1)
    monkeypatch.setenv("MMSPEC_PRODUCTS", "packed")
    monkeypatch.setattr(linear, "PATIENCE", 0)
    ran: list[Any] = []
    multiply = Kernel.__call__
    monkeypatch.setattr(Kernel, "__call__", lambda kernel, x: ran.append(kernel) or multiply(kernel, x))
    model, ids = make_llama(tie_word_embeddings=False), torch.arange(3, 15)[None]
    called = around != "binding"
    with autocast(around != "the call"):
        target = TransformersTarget(model)
    ran.clear()
    with autocast(called), torch.no_grad():
        state = target.start(ids[:, :8], 9, 5)
        output = target.verify(state.cache, Draft.chain(ids[:, 9:]).rooted(ids[:, 8], torch.tensor([9])))
        whole = model(ids).logits[:, 8:].float()
    assert output.logits is not None and (output.logits - whole).abs().max() < 0.05 * whole.abs().max()
    assert bool(ran) != called


def test_a_call_that_begins_inside_autocast_packs_no_weight_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "SMALLEST", 1)
    (kernel,) = linear.kernels(nn.ModuleList([nn.Linear(16, 8)]))
    kernel(torch.ones(1, 16))
    packed = linear._packed[kernel.layer.weight]
    with autocast(True):
        linear.renew([kernel])
    assert linear._packed[kernel.layer.weight] is packed


def test_a_model_refused_under_autocast_is_told_so(make_llama: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "examine", lambda model_info: Finding(None, 2.0, 1.0))
    for on in (True, False):
        with autocast(on), pytest.raises(ValueError, match="refused") as refusal:
            mmspec.enable(make_llama(), "plain")
        assert ("autocast is on" in str(refusal.value)) == on


class Tf32(TorchFunctionMode):
    """Products as a GPU makes them in TF32.

    The inputs of float32 products keep ten bits of their mantissa, and a linear layer sums in another order for one row
    than for several, as on a GPU. Many CPUs do so by themselves; on the others all passes would agree to the bit.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        count = {nn.functional.linear: 2, torch.matmul: 2, nn.functional.scaled_dot_product_attention: 3}
        rounded = count.get(function, 0)
        args = (*map(_ten_bits, args[:rounded]), *args[rounded:])
        if function is nn.functional.linear and args[0].shape[-2] > 1:
            args = (args[0].flip(-1), args[1].flip(-1), *args[2:])
        return function(*args, **(kwargs or {}))


def _ten_bits(x: Tensor) -> Tensor:
    bits = x.contiguous().view(torch.int32)
    return (((bits + 0x0FFF + ((bits >> 13) & 1)) >> 13) << 13).view(torch.float32)


@pytest.fixture
def tf32() -> Iterator[None]:
    multiplied: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before, multiplied.fp32_precision = multiplied.fp32_precision, "tf32"
    try:
        with Tf32():
            yield
    finally:
        multiplied.fp32_precision = before


def see_siblings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: nodes see their siblings, as under a mask of indices."""
    tree = PassGeometry.tree.compute  # type: ignore[attr-defined]

    def wrong(geometry: PassGeometry) -> Tensor:
        order = torch.arange(geometry.ancestor.shape[1])
        geometry.ancestor = geometry.ancestor | (order <= order[:, None])
        return tree(geometry)

    monkeypatch.setattr(PassGeometry, "tree", property(wrong))


@pytest.mark.usefixtures("tf32")
def test_a_deep_model_in_tf32_is_taken_and_a_wrong_mask_is_not(
    make_llama: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_info = ModelInfo.of(make_llama(num_hidden_layers=24))
    found = examine(model_info)
    assert found.manner is not None and found.error > 1e-5 * found.tolerance, "nothing was rounded"
    see_siblings(monkeypatch)
    assert examine(model_info).manner is None


@pytest.mark.parametrize(("name", "seed"), [("mixtral", 3), ("gpt_oss", 2)])
def test_routers_in_half_precision(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding may let a router choose another expert; one such draft does not refuse the model, a wrong mask does."""
    model_info = ModelInfo.of(build(name, seed).bfloat16())
    assert examine(model_info).manner is not None
    see_siblings(monkeypatch)
    assert examine(model_info).manner is None


@pytest.mark.parametrize("experts", [True, False])
def test_only_routers_get_another_draft(experts: bool, make_llama: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def flips(model_info: ModelInfo, draw: int, slack: float, rows: int | None) -> Finding:
        drawn.append(draw)
        return Finding("interface" if draw else None, error=1.0 - draw)

    monkeypatch.setattr(self_check, "_compare", flips)
    found = examine(ModelInfo.of(build("mixtral") if experts else make_llama()))
    assert drawn == ([0, 1] if experts else [0]) and (found.manner is not None) == experts
