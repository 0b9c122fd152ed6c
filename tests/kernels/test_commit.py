"""The commit in one launch leaves what the loop over layers leaves."""

import pytest
import torch
from transformers.cache_utils import DynamicLayer

from mmspec.hosts.slot_cache import SlotCache

PATHS = [[1, 3, 6, -1], [2, 5, 7, 8], [4, 5, 6, 8], [1, -1, -1, -1]]
COUNTS = [4, 5, 2, 0]


def cache(device: torch.device, dtype: torch.dtype) -> SlotCache:
    """Three layers of different shapes; every number says where it lies."""
    made = SlotCache([DynamicLayer() for _ in range(3)], len(PATHS), 50, device)
    made.reserve(50)
    for number, layer in enumerate(made.layers):
        heads, width = number + 1, 3 + 5 * number
        layer.lazy_initialization(*torch.zeros(2, len(PATHS), heads, 1, width, dtype=dtype, device=device))
        for states in (layer.keys, layer.values):
            states.copy_(torch.randn(states.shape, generator=torch.Generator().manual_seed(number)))
    made.length = torch.tensor([3, 17, 0, 40], device=device)
    made.scratch = True
    return made


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_every_layer(device, reference, dtype, monkeypatch):
    from mmspec.core.kernels import commit

    path, count = torch.tensor(PATHS, device=device), torch.tensor(COUNTS, device=device)
    launches, move = [], commit.move_accepted
    monkeypatch.setattr(commit, "move_accepted", lambda *given: launches.append(1) or move(*given))
    found, right, before = cache(device, dtype), cache(device, dtype), cache(device, dtype)
    found.commit(path, count)
    with reference():
        right.commit(path, count)
    assert len(launches) == 1 and torch.equal(found.length, right.length)
    for one, other, old in zip(found.layers, right.layers, before.layers, strict=True):
        assert torch.equal(one.keys, other.keys) and torch.equal(one.values, other.values)
        assert torch.equal(one.keys[1, :, 18:22], old.keys[1, :, [19, 22, 24, 25]])
        assert torch.equal(one.keys[3], old.keys[3])


def test_a_ring_and_two_sizes_of_numbers(device):
    """Slots behind the end of a ring lie at its front; layers may differ in their dtypes."""
    from mmspec.core.kernels import commit

    ring = torch.arange(2 * 8, device=device, dtype=torch.float32).reshape(1, 1, 8, 2)
    half = ring.half()
    length, path, count = (torch.tensor(each, device=device) for each in ([6], [[2, 5]], [3]))
    commit.move_accepted([ring, half], length, path, count, {})
    assert torch.equal(half.float(), ring)
    assert ring[0, 0, 7].tolist() == [0, 1] and ring[0, 0, 0].tolist() == [6, 7]  # slots 7, 8 ← 8, 11


@pytest.mark.gpu
def test_a_large_cache(device, reference):
    path, count = torch.tensor(PATHS, device=device), torch.tensor(COUNTS, device=device)

    def committed() -> SlotCache:
        made = SlotCache([DynamicLayer() for _ in range(32)], len(PATHS), 4096, device)
        made.reserve(4096)
        generator = torch.Generator(device).manual_seed(0)
        for layer in made.layers:
            layer.lazy_initialization(*torch.zeros(2, 4, 8, 1, 128, dtype=torch.bfloat16, device=device))
            layer.keys.normal_(generator=generator)
            layer.values.normal_(generator=generator)
        made.length, made.scratch = torch.tensor([3, 1700, 0, 4000], device=device), True
        made.commit(path, count)
        return made

    found = committed()
    with reference():
        right = committed()
    for one, other in zip(found.layers, right.layers, strict=True):
        assert torch.equal(one.keys, other.keys) and torch.equal(one.values, other.values)
