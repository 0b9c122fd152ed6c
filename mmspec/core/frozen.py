"""Weights that compiled rounds bake in, and how a change of them is noticed.

On a CPU, inductor lays out a constant matrix once, for a product generated for its shape. With it, plain decoding of
the shipped text model is about 1.6 times as fast as eagerly with packed weights (`compiled plain` in its card). The
price is a copy of the weights, a longer compilation, and that rounds know nothing of later weights. The generated
product rounds in its own way: only float32 is frozen, where what is promised is the same units, and not the same bits.
"""

from collections.abc import Hashable, Iterable

import torch
from torch import Tensor, nn

from mmspec.core.once import known
from mmspec.core.transfer import widest

MOST = 2**27
"""The most bytes of weights that rounds of a model bake in. In a larger model the products take as long either way, and
a round that bakes nothing in is compiled in half of the time, and found in torch's cache by the next process."""


def freezable(model: nn.Module) -> bool:
    """True if all weights of a model are float32 on a CPU, belong to torch's own classes, and are few enough."""
    weights = list(model.parameters())
    plain = all(type(w) is nn.Parameter and w.device.type == "cpu" and w.dtype == torch.float32 for w in weights)
    return plain and sum(weight.nbytes for weight in weights) <= MOST


@torch.no_grad()
def numbers(model: nn.Module) -> Hashable:
    """A key that changes with a model's weights, whoever wrote them, for the price of reading them once."""
    return tuple(map(id, model.parameters())), checksums(model.parameters())


def places(model: nn.Module) -> Hashable:
    """A key that changes when a weight or a buffer of a model is another tensor, or lies elsewhere."""
    plain = (Tensor, nn.Parameter)
    weights = (*model.parameters(), *model.buffers())
    return tuple((w.data_ptr() if type(w) in plain else id(w), w.dtype, w.device) for w in weights)


def checksums(weights: Iterable[Tensor]) -> tuple[float, ...]:
    """A number for each weight that changes with it, whoever wrote it; one host sync."""
    sums = [checksum(checksum(weight)[None].to(widest(weight.device))) for weight in weights]
    return tuple(torch.cat([one.to(sums[0].device) for one in sums]).tolist()) if sums else ()


def checksum(weight: Tensor) -> Tensor:
    """A number for each of a weight's rows that changes with it: `[rows]`; torch counts no writes through `.data`.

    In float32 it is the product with a fixed vector, which sees what products of the row can show. In half precision on
    a CPU it is a sum over bytes, which sees every change of a single number but for one in a thousand that become 0.
    """
    rows = weight.detach().reshape(-1, weight.shape[-1] if weight.dim() else 1)
    with torch.autocast(weight.device.type, enabled=False):  # a call may begin inside autocast
        if rows.dtype.itemsize == 2 and rows.device.type == "cpu":
            return torch._int_mm(rows.contiguous().view(torch.int8), _factors(2 * rows.shape[1]))[:, 0]
        return rows @ torch.linspace(1, 2, rows.shape[1], dtype=rows.dtype, device=weight.device)


@known
def _factors(count: int) -> Tensor:
    """A factor for each of so many bytes of a row of two-byte numbers, lower bytes first: `[count, 1]` int8.

    The lower byte's is ±32, the upper one's is odd: a change of both would have to move the upper one by 32 to cancel
    out. Up to 63, products over pairs of bytes fit the 16 bits in which older processors sum them.
    """
    drawn = torch.Generator().manual_seed(0)
    with torch.inference_mode(False):
        lower = 64 * torch.randint(0, 2, (count // 2,), generator=drawn) - 32
        upper = 2 * torch.randint(-32, 32, (count // 2,), generator=drawn) + 1
        return torch.stack([lower, upper], 1).reshape(count, 1).to(torch.int8)
