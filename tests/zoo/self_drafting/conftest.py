"""A Llama of four layers that can be read early, and what it says without some of them, by unmodified transformers."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

LAYERS = 4


@pytest.fixture(scope="session")
def deep(make_llama: Callable) -> Any:
    """Its later layers matter less than the first one, as in trained models."""
    model = make_llama(seed=3, num_hidden_layers=LAYERS)
    for layer in model.model.layers[1:]:
        layer.self_attn.o_proj.weight.data.mul_(0.15)
        layer.mlp.down_proj.weight.data.mul_(0.15)
    return model


@pytest.fixture(scope="session")
def without(deep: Any) -> Callable[[Iterable[int]], Any]:
    """`without(numbers)`: an unmodified model in which these sub-layers add zeros: their last matrix is zero."""

    def make(numbers: Iterable[int]) -> Any:
        model = copy.deepcopy(deep)
        for number in numbers:
            layer = model.model.layers[number // 2]
            last = layer.mlp.down_proj if number % 2 else layer.self_attn.o_proj
            last.weight.data.zero_()
        return model

    return make


@pytest.fixture(scope="session")
def next_scores(deep: Any) -> Callable[..., torch.Tensor]:
    """`next_scores(model, units, first)`: log probabilities behind the units from `first` on, `[unit, vocab]`.

    The units before `first` are in the cache of the whole model.
    """

    @torch.no_grad()
    def scores(model: Any, units: list[int], first: int) -> torch.Tensor:
        cache = deep(input_ids=torch.tensor([units[:first]]), use_cache=True).past_key_values
        output = model(input_ids=torch.tensor([units[first:]]), past_key_values=cache)
        found: torch.Tensor = output.logits[0].log_softmax(-1)
        return found

    return scores
