"""Tells out-of-memory errors from all others: they say nothing about the component during which they were raised."""

import torch

_MESSAGES = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
"""Parts of the `RuntimeError` that torch raises elsewhere than in CUDA's allocator: on the CPU, on Apple's GPUs, in a
CUDA call, in the libraries of CUDA."""


def out_of_memory(error: BaseException) -> bool:
    """True if an error says that there is no memory left, on any device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)
