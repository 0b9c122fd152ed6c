"""A model's code changes between two calls: every call notices, and refuses or follows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.models.llama import modeling_llama

import mmspec

STEERING = torch.linspace(-1, 1, 64)


@contextmanager
def put(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Inside the block, an attribute has another value; one of the object's own class is not left on the object."""
    own = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, own) if own is not None else delattr(owner, name)


def one_unit(states: Tensor) -> float:
    """A factor that acts in passes over one unit alone, as steering of decode steps does."""
    return float(states.shape[1] == 1)


@contextmanager
def hook(model: Any) -> Iterator[None]:
    handle = model.model.layers[0].register_forward_hook(lambda layer, args, out: out + one_unit(out) * STEERING)
    yield
    handle.remove()


@contextmanager
def pre_hook(model: Any) -> Iterator[None]:
    def steer(layer: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (args[0] + one_unit(args[0]) * STEERING, *args[1:])

    handle = model.model.layers[1].mlp.register_forward_pre_hook(steer)
    yield
    handle.remove()


@contextmanager
def global_hook(model: Any) -> Iterator[None]:
    norm = model.model.norm

    def steer(module: Any, args: Any, out: Any) -> Any:
        return out + one_unit(out) * STEERING if module is norm else None

    handle = torch.nn.modules.module.register_module_forward_hook(steer)
    yield
    handle.remove()


def own_forward(model: Any) -> Any:
    forward = model.lm_head.forward
    return put(model.lm_head, "forward", lambda states: forward(states + one_unit(states) * STEERING))


def class_forward(model: Any) -> Any:
    kind = type(model.model.layers[0].mlp)
    forward = kind.forward
    return put(kind, "forward", lambda self, x: forward(self, x) + one_unit(x) * STEERING)


def function_beside(model: Any) -> Any:
    rotate = modeling_llama.apply_rotary_pos_emb
    other = lambda q, k, *cos_sin, **kwargs: rotate(q * (1 + one_unit(q.transpose(1, 2))), k, *cos_sin, **kwargs)  # noqa: E731
    return put(modeling_llama, "apply_rotary_pos_emb", other)


@contextmanager
def attention(model: Any) -> Iterator[None]:
    name, interface = model.config._attn_implementation, AttentionInterface()
    before = interface[name]

    def scaled(module: Any, query: Tensor, *args: Any, **kwargs: Any) -> Any:
        return before(module, query * (1 + one_unit(query.transpose(1, 2))), *args, **kwargs)

    AttentionInterface.register(name, scaled)
    yield
    AttentionInterface.register(name, before)


CHANGES = [hook, pre_hook, global_hook, own_forward, class_forward, function_beside, attention]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_no_tree_goes_through_is_refused(target: Any, prompts: Callable, change: Callable) -> None:
    call = dict(**prompts(1), max_new_tokens=12, do_sample=False)
    right = target.generate(**call)
    with mmspec.enable(target, "token-recycling"):
        assert torch.equal(target.generate(**call), right)
        for _ in range(2):  # and again, when another object may have taken the first one's address
            with change(target), pytest.raises(ValueError, match="cannot verify drafts exactly"):
                target.generate(**call)
            assert torch.equal(target.generate(**call), right)


def test_a_change_that_all_passes_share_is_followed(target: Any, prompts: Callable) -> None:
    call = dict(**prompts(2), max_new_tokens=12, do_sample=True)

    def drawn() -> Tensor:
        torch.manual_seed(0)
        return target.generate(**call)

    plain = drawn()
    with mmspec.enable(target, "prompt-lookup"):
        assert torch.equal(drawn(), plain)
    handle = target.model.layers[0].register_forward_hook(lambda layer, args, out: out + STEERING)
    steered = drawn()
    assert not torch.equal(steered, plain)
    with mmspec.enable(target, "prompt-lookup"):
        assert torch.equal(drawn(), steered)
        handle.remove()
        assert torch.equal(drawn(), plain)


def test_a_call_notices_hooks_without_a_second_self_check(
    target: Any, prompts: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One hook again and again is one change; our own hooks, for states that a drafter reads, are none."""
    checks = []
    examine = mmspec.hosts.self_check.examine
    monkeypatch.setattr(mmspec.hosts.self_check, "examine", lambda model_info: checks.append(1) or examine(model_info))

    def same(layer: Any, args: Any, out: Tensor) -> Tensor:
        return out + 0

    call = dict(**prompts(1), max_new_tokens=6, do_sample=False)
    with mmspec.enable(target, "prompt-lookup"):
        target.generate(**call)
        checks.clear()
        for _ in range(3):
            handle = target.model.layers[0].register_forward_hook(same)
            target.generate(**call)
            handle.remove()
            target.generate(**call)
    assert len(checks) == 1


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_hooks_for_the_rows_of_a_call_are_checked_with_them(target: Any, prompts: Callable, rows: int) -> None:
    """As peft's for an adapter a row: of one prompt, every row has a text of its own."""
    inputs = {name: each.expand(rows, -1) for name, each in prompts(1).items()}
    call = dict(**inputs, max_new_tokens=12, do_sample=False)
    own = torch.randn(rows, 1, target.config.hidden_size, generator=torch.Generator().manual_seed(1))

    def steer(layer: Any, args: Any, out: Tensor) -> Tensor:
        if len(out) != rows:
            raise ValueError(f"{len(out)} rows and not {rows}")
        return out + own

    with mmspec.enable(target, "prompt-lookup") as spec:
        handle = target.model.layers[0].register_forward_hook(steer)
        steered = target.generate(**call)
        assert spec.report.rounds and not spec.report.faults
    assert torch.equal(target.generate(**call), steered)
    assert len({tuple(row) for row in steered.tolist()}) == rows
    handle.remove()
