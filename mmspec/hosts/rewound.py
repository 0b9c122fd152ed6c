"""A call's cache, some units earlier: for passes over known text that leave no trace."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mmspec.hosts.target_cache import TransformersTargetCache


@contextmanager
def rewound(cache: TransformersTargetCache, units: int) -> Iterator[None]:
    """A block in which every row has `units` fewer committed units; what passes write there is undone behind it.

    A row that has fewer begins anew. Some row has so many; no layer keeps a ring, and none is recurrent.
    """
    slots = cache.slots
    length = slots.length.clone()  # captured rounds have one tensor for it
    begin = (length - units).clamp(min=0)
    at = begin[:, None] + torch.arange(units, device=length.device)
    kept = [(layer, *layer.read(at)) for layer in slots.owning]
    slots.set_length(begin)
    try:
        yield
    finally:
        slots.set_length(length)
        for layer, keys, values in kept:
            layer.write(at, keys, values)
