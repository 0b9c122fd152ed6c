"""A pass in parts is the whole pass: scores and keys, in a ragged batch; a model whose passes have no parts says so."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import Gemma3nTextConfig

from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.tiny_models import SIZES
from mmspec_zoo.sorted.waiting import split
from mmspec_zoo.sublayers import SubLayers
from tests.support.random_models import random_model
from tests.support.zoo import build

SLOW = ("mistral", "gemma2", "qwen3_moe", "falcon-new", "opt", "cohere2")
NAMES = ["llama", "gpt2", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("each", [False, True], ids=["two parts", "a part for each layer"])
@torch.inference_mode()
def test_parts_are_the_whole_pass(name: str, each: bool, prompts: Callable) -> None:
    """A tree of four nodes; then a fifth, alone."""
    model = build(name)
    target = TransformersTarget(model)
    layers = target.layers()
    parts = split(SubLayers(target.model_info), range(1, layers + 1) if each else (1, layers))
    units = torch.tensor([[3, 4, 5, 6, 7], [9, 8, 7, 6, 5], [2, 4, 6, 8, 10]])
    tree = Draft.tree(units[:, 1:], [-1, 0, -1, 1]).rooted(units[:, 0], torch.tensor([9, 9, 9]))
    whole, split_up = (target.start(prompts(3), 8, 8).cache for _ in range(2))
    expected = target.verify(whole, tree).logits
    assert expected is not None
    for first, last in ((0, 4), (4, 5)):
        nodes = TreeIndex.static([-1, 0, 1, 0, 2][:last])
        states = None
        for part in parts:
            with part.alone(states) as record:
                logits = split_up.passes(split_up.slots, units[:, first:last], nodes, first=first)
            states = record.states
        torch.testing.assert_close(logits, expected[:, first:last], atol=1e-4, rtol=1e-4)
    lengths = whole.slots.length.tolist()
    for ours, theirs in zip(split_up.slots.owning, whole.slots.owning, strict=True):
        for row, length in enumerate(lengths):
            torch.testing.assert_close(ours.keys[row, :, : length + 5], theirs.keys[row, :, : length + 5])
            torch.testing.assert_close(ours.values[row, :, : length + 5], theirs.values[row, :, : length + 5])
    assert not [module for module in model.modules() if "forward" in vars(module) or module._forward_pre_hooks]


@torch.inference_mode()
def test_parts_compute_what_one_pass_does_to_the_bit(make_llama: Callable) -> None:
    """Parts of equal shape are the same operations; and the scores of a part are those of its sub-model."""
    model, ids = make_llama(num_hidden_layers=4), torch.tensor([[3, 4, 5, 6]])
    states = None
    for part in split(SubLayers(TransformersTarget(model).model_info), (1, 2, 4)):
        with part.alone(states) as record:
            logits = model(input_ids=ids).logits
        states = record.states
        fresh = make_llama(num_hidden_layers=part.end)
        fresh.load_state_dict(model.state_dict(), strict=False)
        assert torch.equal(logits, fresh(input_ids=ids).logits)


@pytest.mark.parametrize("ends", [(), (0, 2), (2, 2), (3, 1), (2, 5)], ids=str)
def test_parts_that_there_are_not(make_llama: Callable, ends: tuple[int, ...]) -> None:
    model_info = TransformersTarget(make_llama(num_hidden_layers=4)).model_info
    with pytest.raises(ValueError, match="a model of 4 layers has sub-models of its first 1 to 4 layers, the smaller"):
        split(SubLayers(model_info), ends)


def test_layers_that_hand_on_more_than_their_states() -> None:
    config: Any = Gemma3nTextConfig(
        **{**SIZES, "num_hidden_layers": 4, "num_kv_shared_layers": 0, "laurel_rank": 4},
        vocab_size_per_layer_input=SIZES["vocab_size"],
        hidden_size_per_layer_input=8,
    )
    model_info = TransformersTarget(random_model(config)).model_info
    with pytest.raises(ValueError, match="hand on more than their states, so that its passes have no parts"):
        split(SubLayers(model_info), (2, 4))
