"""Tells out-of-memory errors from all others: they say nothing about the component during which they were raised."""

import torch

_CPU_MESSAGE = "can't allocate memory"
"""Part of the `RuntimeError` that torch's CPU allocator raises."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is no memory left, on any device."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or _CPU_MESSAGE in str(error)
