"""What is found out about a model goes with it, and is found out again where the model is no longer what it was."""

import copy
import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import mmspec
from mmspec.compare.equality import NEAR_TIE
from mmspec.core.out_of_memory import out_of_memory
from mmspec.hosts import linear, self_check
from mmspec.hosts.model_info import ModelInfo
from mmspec.hosts.quantised_layers import QuantisedLayers
from mmspec.hosts.self_check import Finding
from mmspec.hosts.target import TransformersTarget
from tests.support.zoo import REFUSED

METHODS = ["plain", "prompt-lookup", "suffix", "token-recycling", "draft-model", "draft-tree"]


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Models that the self-check has looked at, by id."""
    seen, right = [], self_check.examine

    def examine(model_info: ModelInfo) -> Finding:
        seen.append(id(model_info.model))
        return right(model_info)

    monkeypatch.setattr(self_check, "examine", examine)
    return seen


def used(model: Any, method: str, prompts: Callable, **spec: Any) -> None:
    with mmspec.enable(model, method, **spec):
        model.generate(**prompts(2), max_new_tokens=6, do_sample=False)
    model.generate(**prompts(2), max_new_tokens=6, custom_generate=mmspec.custom_generate(method, **spec))


@pytest.mark.parametrize(
    "method",
    [pytest.param(m, marks=[] if m in ("token-recycling", "draft-tree") else pytest.mark.slow) for m in METHODS],
)
def test_nothing_keeps_a_model_alive(method: str, make_llama: Callable, prompts: Callable) -> None:
    model, drafter = make_llama(), make_llama(seed=1) if method.startswith("draft-") else None
    used(model, method, prompts, **({"drafter": drafter} if drafter is not None else {}))
    left = [weakref.ref(part) for part in (model, drafter) if part is not None]
    del model, drafter
    gc.collect()
    assert not [part() for part in left if part() is not None]


def test_a_refused_model_is_let_go() -> None:
    model = REFUSED["bart"].model()
    with pytest.raises(ValueError, match="cannot verify drafts exactly"):
        mmspec.enable(model)
    left = weakref.ref(model)
    del model
    gc.collect()
    assert left() is None


def test_nothing_keeps_the_model_of_a_pipeline_alive() -> None:
    pipe = mmspec.Pipeline.from_pretrained("mmspec/text-1m", method="prompt-lookup")
    pipe("def main(", max_new_tokens=4, temperature=0)
    left, copies = weakref.ref(pipe.model), len(linear._packed)
    weights = len([weight for weight in pipe.model.parameters() if weight in linear._packed])
    del pipe
    gc.collect()
    assert left() is None and len(linear._packed) == copies - weights


def test_laid_out_weights_go_when_it_is_disabled(monkeypatch: pytest.MonkeyPatch, prompts: Callable) -> None:
    monkeypatch.setattr(linear, "SMALLEST", 1)
    pipe = mmspec.Pipeline.from_pretrained("mmspec/text-1m")
    model, drafter = pipe.model, copy.deepcopy(pipe.model)
    weights = [part.weight for owner in (model, drafter) for part in owner.modules() if isinstance(part, nn.Linear)]
    spec = mmspec.enable(model, "draft-model", drafter=drafter)
    for kernel in spec._decoder.target.passes.kernels + spec._decoder.drafter.model.passes.kernels:
        kernel(torch.ones(1, kernel.layer.in_features))
    held = [weakref.ref(linear._packed[weight]) for weight in weights if weight in linear._packed]
    assert held
    spec.disable()
    assert not [weight for weight in weights if weight in linear._packed] and not [part for part in held if part()]


def test_a_model_is_examined_once(examined: list[Any], make_llama: Callable, prompts: Callable) -> None:
    model = make_llama()
    for method in ("plain", "prompt-lookup"):
        used(model, method, prompts)
    assert examined == [id(model)]
    used(copy.deepcopy(model), "plain", prompts)
    assert len(examined) == 2, "another model of the same class and configuration has weights of its own"


def test_what_changes_arithmetic_is_looked_at_again(examined: list[Any], make_llama: Callable) -> None:
    target, ids = TransformersTarget(make_llama()), torch.arange(3, 9)[None]
    with torch.autocast("cpu", torch.bfloat16):
        target.start(ids, 4, 1)
    multiplied = torch.backends.cuda.matmul
    before, multiplied.fp32_precision = multiplied.fp32_precision, "tf32"
    try:
        target.start(ids, 4, 1)
    finally:
        multiplied.fp32_precision = before
    assert len(examined) == 3
    target.start(ids, 4, 1)
    assert len(examined) == 3, "what was found at first still holds"


CHANGES: dict[str, Callable[[Any], object]] = {
    "written": lambda model: model.lm_head.weight.requires_grad_(False).mul_(1.5),
    "another": lambda model: setattr(model.lm_head, "weight", nn.Parameter(model.lm_head.weight.clone())),
    "data": lambda model: setattr(model.lm_head.weight, "data", model.lm_head.weight.data.clone()),
    "dtype": lambda model: model.bfloat16(),
    "compiled": lambda model: setattr(model.model.layers[0], "_compiled_call_impl", model.model.layers[0]._call_impl),
    "attention": lambda model: model.set_attn_implementation("eager"),
    "training": lambda model: model.train(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_is_looked_at_again(change: str, examined: list[Any], make_llama: Callable) -> None:
    model = make_llama()
    model_info = ModelInfo.of(model)
    self_check.checked(model_info)
    CHANGES[change](model)
    self_check.checked(model_info)
    self_check.checked(model_info)
    assert len(examined) == 2


def fails_once(model: Any, error: Exception) -> None:
    right, errors = model.forward, [error]

    @functools.wraps(right)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if errors:
            raise errors.pop()
        return right(*args, **kwargs)

    model.forward = forward


NO_MEMORY: list[Exception] = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
]


@pytest.mark.parametrize("error", NO_MEMORY, ids=["python", "device", "cpu"])
def test_no_memory_is_no_verdict(error: Exception, make_llama: Callable) -> None:
    model = make_llama()
    fails_once(model, error)
    with pytest.raises(type(error)) as raised:
        mmspec.enable(model)
    assert raised.value is error and out_of_memory(error) and not out_of_memory(ValueError("no"))
    with mmspec.enable(model):
        pass


def test_an_error_is_not_remembered(make_llama: Callable) -> None:
    model = make_llama()
    fails_once(model, RuntimeError("the device was busy"))
    with pytest.raises(ValueError, match=r"its unmodified pass failed \(RuntimeError: the device was busy"):
        mmspec.enable(model)
    with mmspec.enable(model):
        pass


def test_weights_that_were_no_numbers_can_be_mended(make_llama: Callable) -> None:
    model = make_llama()
    held = float(model.lm_head.weight.data[0, 0])
    model.lm_head.weight.data[0, 0] = float("nan")  # which torch does not count
    with pytest.raises(ValueError, match="NaN or infinite"):
        mmspec.enable(model)
    model.lm_head.weight.data[0, 0] = held
    with mmspec.enable(model):
        pass


def test_what_was_found_holds_numbers_only(make_llama: Callable) -> None:
    model = make_llama()
    self_check.checked(ModelInfo.of(model))
    (finding,) = self_check._sound.of(model).values()
    assert finding.manner == "interface" and finding.error < finding.tolerance < NEAR_TIE * 100
    layers = finding.quantised  # names of layers
    assert {type(value) for value in (*vars(finding).values(), *vars(layers).values(), *layers.names)} <= {
        *(str, float, bool, tuple, type(None)),
        QuantisedLayers,
    }
