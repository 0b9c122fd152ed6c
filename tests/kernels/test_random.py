"""Kernels' numbers are those of the counter-based noise."""

import pytest
import torch

from mmspec.core.noise import Substream
from mmspec.core.philox import PhiloxNoise, PhiloxSource


def noise(device: torch.device, shared: bool, rows: int = 3, nodes: int = 2) -> PhiloxNoise:
    source = PhiloxSource.seeded([2**63 + 11, 7, 123456789012][:rows], rows, device)
    address = torch.tensor([[0, 70_000], [5, 3], [2**31 + 1, 9]], device=device)
    round = torch.tensor([[0], [1], [40_000]], device=device)
    return PhiloxNoise(source.key, address[:1] if shared else address, round, Substream.RESIDUAL)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("size", "mixed"), [(1, False), (3, True), (500, False), (2051, False)])
def test_numbers(device, reference, shared, size, mixed):
    at = noise(device, shared)
    if mixed:
        at = at.where(torch.tensor([[True, False]], device=device), Substream.UNIT)
    ids = torch.randint(0, size, (3, 2, 5), device=device)
    found = at.exponential(size), at.exponential_at(ids), at.uniform(), at.normal(3)
    with reference():
        right = at.exponential(size), at.exponential_at(ids), at.uniform(), at.normal(3)
    assert torch.equal(found[2], right[2]) and torch.equal(found[3], right[3])
    for kernel, torchs in zip(found[:2], right[:2], strict=True):
        assert ((kernel - torchs).abs() <= 4e-7 * torchs).all()
    assert torch.equal(found[1], found[0].gather(-1, ids))
    assert at.at(ids[:, :0, 0]).exponential(size).shape == (3, 0, size)


def test_exponentials_of_the_smallest_and_largest_uniforms(device):
    from tests.kernels.exponential_probe import convert

    word = [0, 1, 2, 1000, 2**20, 2**28 - 999, 2**28, 2**28 + 999, 2**30, 2**31, 2**31 + 1, 3 * 2**30, 2**32 - 2**8]
    words = torch.tensor([*word, 2**32 - 3, 2**32 - 2, 2**32 - 1], device=device)
    u, e = torch.empty(16, device=device), torch.empty(16, device=device)
    convert[(1,)](words, u, e, SIZE=16)
    right = -torch.log1p(-u.double())
    assert ((e - right).abs() <= 4e-7 * right).all()
    assert (u > 0).all() and (u < 1).all() and e.isfinite().all()
