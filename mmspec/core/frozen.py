"""Weights that compiled rounds bake in, and how a change of them is noticed.

On a CPU, inductor lays out a constant matrix once, for a product generated for its shape. With it, plain decoding of
the shipped text model is about 1.6 times as fast as eagerly with packed weights (`compiled plain` in its card). The
price is a copy of the weights, a longer compilation, and that rounds know nothing of later weights. Which product is
faster is measured, so that rounding may differ from one process to the next: only float32 is frozen, where what is
promised is the same units, and not the same bits.
"""

from collections.abc import Hashable, Iterable

import torch
from torch import Tensor, nn

MOST = 2**27
"""The most bytes of weights that rounds of a model bake in. In a larger model the products take as long either way, and
a round that bakes nothing in is compiled in half of the time, and found in torch's cache by the next process."""


def freezable(model: nn.Module) -> bool:
    """Whether all weights of a model are float32 on a CPU, belong to torch's own classes, and are few enough."""
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
    sums = [checksum(checksum(weight)[None]) for weight in weights]
    return tuple(torch.cat([one.to(sums[0].device) for one in sums]).tolist()) if sums else ()


def checksum(weight: Tensor) -> Tensor:
    """The products of a weight's rows with a fixed vector: `[rows]`; torch counts no writes through `.data`.

    Two neighbours in bfloat16 are read as one number in float32, whose sums show what theirs would round away.
    """
    rows = weight.detach().reshape(-1, weight.shape[-1] if weight.dim() else 1)
    if rows.dtype == torch.bfloat16 and rows.shape[1] % 2 == 0 and rows.is_contiguous():
        rows = rows.view(torch.float32)
    along = torch.linspace(1, 2, rows.shape[1], dtype=rows.dtype, device=weight.device)
    with torch.autocast(weight.device.type, enabled=False):  # a call may begin inside autocast
        return rows @ along
