"""Passes without sub-layers are those of a model whose sub-layers add zeros; and nothing is left behind."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import GPT2Config, OPTConfig

from mmspec.core.types import Draft
from mmspec.hosts.target import TransformersTarget
from mmspec.hosts.target_cache import rewound
from mmspec_zoo.sublayers import SubLayers
from tests.support.random_models import random_model

SETS = {"attention": {2}, "feed-forward": {3}, "both of a layer": {2, 3, 4}, "behind layer 1": {2, 3, 4, 5, 6, 7}}


@pytest.mark.parametrize("numbers", SETS.values(), ids=SETS)
def test_left_out_sub_layers_add_nothing(deep: Any, without: Callable, prompts: Callable, numbers: set[int]) -> None:
    ids, parts = prompts(1)["input_ids"], SubLayers(TransformersTarget(deep).model_info)
    with torch.no_grad():
        expected, whole = (model(input_ids=ids).logits for model in (without(numbers), deep))
        with parts.left_out(numbers):
            found = deep(input_ids=ids).logits
        torch.testing.assert_close(found, expected)
        assert (found - whole).abs().max() > 0.1
        assert torch.equal(deep(input_ids=ids).logits, whole), "the model is as it was"
    assert not [module for module in deep.modules() if "forward" in vars(module)]


def test_what_runs_behind_an_exit(deep: Any, prompts: Callable) -> None:
    """Nothing: neither parts nor norms."""
    ran = list[str]()
    hooks = [
        module.register_forward_hook(lambda module, *_: ran.append(type(module).__name__))
        for layer in deep.model.layers[1:]
        for module in layer.children()
    ]
    parts = SubLayers(TransformersTarget(deep).model_info)
    with torch.no_grad(), parts.left_out([2]):
        deep(input_ids=prompts(1)["input_ids"])
    assert ran
    ran.clear()
    with torch.no_grad(), parts.left_out(parts.from_layer(1)):
        deep(input_ids=prompts(1)["input_ids"])
    for hook in hooks:
        hook.remove()
    assert not ran


def test_another_librarys_forward_comes_back(deep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As accelerate puts one there."""
    layer = deep.model.layers[2]
    theirs = layer.forward
    monkeypatch.setattr(layer, "forward", theirs, raising=False)
    parts = SubLayers(TransformersTarget(deep).model_info)
    with parts.left_out([4, 5]):
        assert vars(layer)["forward"] is not theirs
    assert vars(layer)["forward"] is theirs


def test_another_thread_waits_for_the_whole_model(deep: Any, prompts: Callable) -> None:
    target, found = TransformersTarget(deep), list[Any]()
    parts = SubLayers(target.model_info)
    started = target.start(prompts(1), 4, 4)
    draft = Draft.alone(torch.tensor([5]))
    expected = target.verify(started.cache, draft).logits
    other = threading.Thread(target=lambda: found.append(target.verify(started.cache, draft).logits))
    with parts.left_out([2, 3]):
        other.start()
        other.join(0.2)
        assert not found
    other.join()
    assert torch.equal(found[0], expected)


def test_a_rewound_cache_is_as_it_was(deep: Any, prompts: Callable) -> None:
    target = TransformersTarget(deep)
    cache = target.start(prompts(3), 8, 8).cache
    before = [(layer.keys.clone(), layer.values.clone()) for layer in cache.slots.owning]
    length = cache.slots.length.clone()
    chain = Draft.chain(torch.tensor([[7, 8]] * 3)).rooted(torch.tensor([6] * 3), torch.tensor([3] * 3))
    with rewound(cache, 3):
        assert torch.equal(cache.slots.length, length - 3)
        target.verify(cache, chain)
        assert not torch.equal(cache.slots.owning[0].keys, before[0][0])
    assert torch.equal(cache.slots.length, length)
    for layer, (keys, values) in zip(cache.slots.owning, before, strict=True):
        for row, n in enumerate(length.tolist()):
            assert torch.equal(layer.keys[row, :, :n], keys[row, :, :n])
            assert torch.equal(layer.values[row, :, :n], values[row, :, :n])


def test_layers_of_gpt2_return_what_they_did() -> None:
    """Some layers return tuples; GPT-2's attention does."""
    model = random_model(GPT2Config(vocab_size=31, n_embd=16, n_layer=3, n_head=2, n_positions=64))
    parts = SubLayers(TransformersTarget(model).model_info)
    with torch.no_grad(), parts.left_out([2, 4, 5]):
        assert model(input_ids=torch.tensor([[3, 4]])).logits.isfinite().all()


def test_sub_layers_that_are_no_modules() -> None:
    config = OPTConfig(vocab_size=31, hidden_size=16, num_hidden_layers=3, ffn_dim=24, num_attention_heads=2)
    parts = SubLayers(TransformersTarget(random_model(config)).model_info)
    with pytest.raises(ValueError, match=r"layer 0 of OPTForCausalLM has 0 modules .* layer-skip and del"):
        _ = parts.parts
    with torch.no_grad(), parts.left_out(parts.from_layer(2)):
        assert parts.model_info.model(input_ids=torch.tensor([[3, 4]])).logits.isfinite().all()


@pytest.mark.parametrize("layer", [0, 4, 9])
def test_exits_that_there_are_not(deep: Any, layer: int) -> None:
    with pytest.raises(ValueError, match=f"a model of 4 layers can be left behind layer 1 to 3, not {layer}"):
        SubLayers(TransformersTarget(deep).model_info).from_layer(layer)
