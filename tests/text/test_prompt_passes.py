"""Off the CPU passes over prompts have few shapes, each of which a library would have to plan, and the same results."""

from typing import Any

import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig

from mmspec.core.tree import TreeIndex
from mmspec.hosts.passes import Passes
from mmspec.hosts.prefill import prefill_chunks
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.slot_layer import rings
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.tiny_models import SIZES
from tests.support.examples import ssm
from tests.support.random_models import random_model

LENGTHS = (1, 7, 64, 65, 100, 129, 500, 512, 530, 700)


def read(passes: Passes, lengths: list[int], fixed: bool, free_to_read: bool) -> tuple[SlotCache, torch.Tensor]:
    """A cache that has read prompts of these lengths, and the logits behind them."""
    layers, most = passes.model_info.layers(), max(lengths) + 3
    cache = SlotCache(layers, len(lengths), most, torch.device("cpu"), fixed, rings(layers, None, 512, 1))
    cache.free_to_read = free_to_read
    ids = torch.randint(1, 7, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(max(lengths)) >= max(lengths) - torch.tensor(lengths)[:, None]
    return cache, prefill_chunks(passes, cache, ids, mask.long())


@pytest.mark.parametrize("fixed", [False, True], ids=["", "one shape"])
@pytest.mark.parametrize("kind", ["llama", "a window", "a state"])
def test_few_shapes_and_the_same_results(kind: str, fixed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    more: dict[str, Any] = {**SIZES, "max_position_embeddings": 2048}
    configs = {"llama": LlamaConfig(**more), "a window": Gemma3TextConfig(**more, sliding_window=8)}
    target = ssm.hybrid().target if kind == "a state" else TransformersTarget(random_model(configs[kind]))
    passes, shapes = target.passes, set[tuple[int, int]]()
    opened = SlotCache.open

    def noted(self: SlotCache, first: int, nodes: int) -> None:
        opened(self, first, nodes)
        if not self.free_to_read and self.reading:
            shapes.add((nodes, self.visible))

    monkeypatch.setattr(SlotCache, "open", noted)
    with torch.no_grad():
        for length in LENGTHS:
            lengths = [length, max(1, length - 3)]
            (right, expected), (cache, found) = (read(passes, lengths, fixed, free) for free in (True, False))
            assert torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))
            assert torch.equal(cache.length, right.length) and cache.longest == length and not cache.reading
            ids, chain = torch.full((2, 2), 3), TreeIndex.chain(2)
            after, wanted = passes(cache, ids, chain), passes(right, ids, chain)
            assert torch.allclose(after, wanted, rtol=1e-3, atol=1e-3 * float(wanted.abs().max()))
    assert {nodes for nodes, _ in shapes} <= {64, 128, 256, 512}
    assert len({slots for _, slots in shapes}) <= 5 + 2  # the largest ones are what these calls may need at most
