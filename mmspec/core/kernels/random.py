"""Random numbers of `mmspec.core.philox` inside kernels, and those numbers alone, in one launch.

Reference: `PhiloxNoise`. Words and uniforms are equal; E = -log1p(-u) is equal up to the rounding of the logarithm.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.core.kernels import beside

BLOCK = 1024
"""Numbers that a program computes."""


@triton.jit
def seed_of(key, row):
    """The two key words of a row as one 64-bit seed."""
    low, high = tl.load(key + 2 * row).to(tl.uint64), tl.load(key + 2 * row + 1).to(tl.uint64)
    return low | (high << 32)


@triton.jit
def uniform_of(word):
    """32-bit words to float32 in (0, 1), as `mmspec.core.philox.uniform_of`."""
    u = (word.to(tl.uint32).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    return tl.minimum(u, 1 - 5.9604644775390625e-08)


@triton.jit
def exponential_of(u):
    """-log1p(-u) without a library: a series where u is small, elsewhere Kahan's form, which keeps the digits of u.

    Exact to a few units of the last place, even where a device's logarithm is exact in absolute terms only.
    """
    series = u * (1 + u * (1 / 2 + u * (1 / 3 + u * (1 / 4 + u * (1 / 5 + u * (1 / 6))))))
    large = tl.maximum(u, 0.0625)
    w = 1.0 - large
    return tl.where(u < 0.0625, series, -tl.log(w) * tl.div_rn(large, 1.0 - w))


@triton.jit
def uniforms(seed, first, address, substream, round, SIZE: tl.constexpr):
    """The uniforms of the units `first … first + SIZE - 1` at one address; both are multiples of 4."""
    block = (first // 4 + tl.arange(0, SIZE // 4)).to(tl.uint32)
    zero = tl.zeros_like(block)
    w0, w1, w2, w3 = tl.philox(seed, block, zero + address.to(tl.uint32), zero + substream, zero + round.to(tl.uint32))
    return uniform_of(tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3)))


@triton.jit
def exponentials(seed, first, address, substream, round, SIZE: tl.constexpr):
    """Exp(1) of the units `first … first + SIZE - 1` at one address."""
    return exponential_of(uniforms(seed, first, address, substream, round, SIZE))


@triton.jit
def coin(seed, address, substream, round):
    """The one uniform of an address that `PhiloxNoise.uniform` gives."""
    first = uniforms(seed, tl.zeros_like(address), address, substream, round, 4)
    return tl.sum(tl.where(tl.arange(0, 4) == 0, first, 0.0), 0)


@triton.jit
def _numbers(
    out, key, address, round, stream, count, nodes, address_stride,
    EACH: tl.constexpr, EXPONENTIAL: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    node, first = tl.program_id(0), tl.program_id(1) * SIZE
    row = node // nodes
    at = tl.load(address + row * address_stride + node % nodes)
    substream = tl.load(stream + node).to(tl.uint32) if EACH else stream
    u = uniforms(seed_of(key, row), first, at, substream, tl.load(round + row), SIZE)
    unit = first + tl.arange(0, SIZE)
    tl.store(out + node.to(tl.int64) * count + unit, exponential_of(u) if EXPONENTIAL else u, mask=unit < count)


@triton.jit
def _exponentials_at(
    out, ids, key, address, round, stream, count, nodes, address_stride, EACH: tl.constexpr, SIZE: tl.constexpr
):
    node, first = tl.program_id(0), tl.program_id(1) * SIZE
    row, place = node // nodes, first + tl.arange(0, SIZE)
    here = place < count
    unit = tl.load(ids + node.to(tl.int64) * count + place, mask=here, other=0)
    zero = tl.zeros_like(unit).to(tl.uint32)
    substream = tl.load(stream + node).to(tl.uint32) if EACH else stream
    at = tl.load(address + row * address_stride + node % nodes).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(
        seed_of(key, row),
        (unit // 4).to(tl.uint32),
        zero + at,
        zero + substream,
        zero + tl.load(round + row).to(tl.uint32),
    )
    of = unit % 4
    word = tl.where(of == 0, w0, tl.where(of == 1, w1, tl.where(of == 2, w2, w3)))
    tl.store(out + node.to(tl.int64) * count + place, exponential_of(uniform_of(word)), mask=here)


def numbers(key: Tensor, address: Tensor, round: Tensor, stream: int | Tensor, count: int, exponential: bool) -> Tensor:
    """Uniforms, or Exp(1): `[batch, node, count]` float32; key, address, round and substream as in `PhiloxNoise`."""
    out, grid, size = _made(key, address, count)
    if not out.numel():  # a launch of no programs is an error
        return out
    place, each = _placed(key, address, round, stream), isinstance(stream, Tensor)
    with beside(key):
        _numbers[grid](out, *place, count, *_stride(address), EACH=each, EXPONENTIAL=exponential, SIZE=size)
    return out


def exponentials_at(ids: Tensor, key: Tensor, address: Tensor, round: Tensor, stream: int | Tensor) -> Tensor:
    """Exp(1) of the unit ids `[batch, node, k]`: the same numbers that `numbers` has for them."""
    out, grid, size = _made(key, address, ids.shape[2])
    if not out.numel():
        return out
    ids = ids.expand(out.shape).contiguous()
    place, each = _placed(key, address, round, stream), isinstance(stream, Tensor)
    with beside(key):
        _exponentials_at[grid](out, ids, *place, ids.shape[2], *_stride(address), EACH=each, SIZE=size)
    return out


def _made(key: Tensor, address: Tensor, count: int) -> tuple[Tensor, tuple[int, int], int]:
    """A tensor for the numbers, the grid of programs, and how many numbers each of these computes."""
    rows, nodes = len(key), address.shape[1]
    size = min(BLOCK, max(4, triton.next_power_of_2(count)))
    out = torch.empty(rows, nodes, count, dtype=torch.float32, device=key.device)
    return out, (rows * nodes, triton.cdiv(count, size)), size


def _placed(
    key: Tensor, address: Tensor, round: Tensor, stream: int | Tensor
) -> tuple[Tensor, Tensor, Tensor, int | Tensor]:
    rows, nodes = len(key), address.shape[1]
    stream = stream.expand(rows, nodes).contiguous() if isinstance(stream, Tensor) else int(stream)
    return key.contiguous(), address.contiguous(), round.expand(rows, 1).contiguous(), stream


def _stride(address: Tensor) -> tuple[int, int]:
    """The number of nodes, and how far apart two rows' addresses are: 0 if all rows share them."""
    nodes = address.shape[1]
    return nodes, nodes if len(address) > 1 else 0
