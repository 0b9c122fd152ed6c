"""An eager pass off the CPU launches hardly more than the model's own: what is equal for all layers is computed once.

The launches are counted on a CPU, over a cache whose lengths the host does not read, as on a GPU.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache, Gemma3TextConfig, LlamaConfig

from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft
from mmspec.hosts import passes
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.target import TransformersTarget
from tests.support.logical_operations import FREE, INDEXING
from tests.support.random_models import random_model

LAYERS, PROMPT = 12, 40
SIZES: dict[str, Any] = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=LAYERS,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=512,
    eos_token_id=None,
)
TREES = {
    "one node": [-1],
    "a chain of 16": list(range(-1, 15)),
    "a tree of 16": [-1, *(node // 2 for node in range(15))],
    "a tree of 64": [-1, *(node // 2 for node in range(63))],
}


class Launches(TorchDispatchMode):
    """Counts operations that launch a kernel, and the copies that CUDA makes of index tensors of unlike strides."""

    number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        base, overload = func._schema.name, func._schema.overload_name
        if not func.is_view and not {base, f"{base}.{overload}"} & FREE:
            self.number += 1
        if base in INDEXING:
            index = torch.broadcast_tensors(*(each for each in args[1] if isinstance(each, Tensor)))
            if len({each.stride() for each in index}) > 1:
                self.number += sum(not each.is_contiguous() for each in index)
        return func(*args, **(kwargs or {}))


def ours(model: Any, parents: list[int]) -> int:
    """Launches of a pass of ours over a tree behind a prompt."""
    target = TransformersTarget(model)
    cache = target.start({"input_ids": torch.arange(PROMPT)[None] % 50 + 3}, 100, len(parents)).cache
    cache.slots.free_to_read = False
    units = torch.full((1, len(parents)), 7)
    draft = Draft(units, TreeIndex.static(parents), torch.ones_like(units, dtype=torch.bool))
    with (
        torch.no_grad(),
        target.ready(cache, len(parents)),
    ):  # inference mode hides what operations consist of
        target.forward(cache, draft)
        with Launches() as launches:
            target.forward(cache, draft)
    return launches.number


def own(model: Any, nodes: int) -> int:
    """Launches of the model's own pass over so many units behind a prompt."""
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=torch.arange(PROMPT)[None] % 50 + 3, past_key_values=cache, use_cache=True)
        place = torch.arange(PROMPT, PROMPT + nodes)[None]
        units = torch.full((1, nodes), 7)
        with Launches() as launches:
            model(input_ids=units, position_ids=place, past_key_values=cache, use_cache=True)
    return launches.number


@pytest.mark.parametrize("parents", TREES.values(), ids=TREES.keys())
def test_a_pass_launches_at_most_a_tenth_more_than_the_models_own(parents: list[int]) -> None:
    model = random_model(LlamaConfig(**SIZES)).bfloat16()
    assert ours(model, parents) <= 1.1 * own(model, len(parents))


def test_no_layer_computes_what_another_has_computed() -> None:
    """Two kinds of layers: a further layer of each kind has a layer's launches, no more."""
    types = ["sliding_attention", "full_attention"] * LAYERS
    configs = [
        Gemma3TextConfig(
            **{**SIZES, "num_hidden_layers": layers},
            sliding_window=8,
            layer_types=types[:layers],
        )
        for layers in (2, 4)
    ]
    few, more = (random_model(config).bfloat16() for config in configs)
    tree = TREES["a tree of 16"]
    assert ours(more, tree) - ours(few, tree) <= own(more, 1) - own(few, 1) + 2 * 2  # queries and outputs are packed


def test_a_call_begins_with_hardly_more_than_the_models_own_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every layer has places to make and to fill; whatever is known of the model is found in its first call."""
    monkeypatch.setattr(SlotCache, "exact", False)  # as on a GPU, where no pass sums in float64
    model = random_model(LlamaConfig(**SIZES))
    prompt = {"input_ids": torch.arange(PROMPT)[None] % 50 + 3}
    with torch.no_grad(), Launches() as expected:
        model(**prompt, use_cache=True)
    target = TransformersTarget(model)
    begun = target.start(prompt, 100, 16).cache.passes
    walks = list[int]()
    for looked in ("kernels", "sites", "lengths", "foreign"):
        real = getattr(passes, looked)
        monkeypatch.setattr(passes, looked, lambda *given, real=real: (walks.append(1), real(*given))[1])
    with torch.no_grad(), Launches() as launches:
        assert target.start(prompt, 100, 16).cache.passes is begun
    assert not walks and launches.number <= expected.number + 5 * LAYERS + 100
    model.model.layers[0].register_forward_hook(lambda *_: None)
    assert target.start(prompt, 100, 16).cache.passes is not begun and walks, "the model runs other code"
