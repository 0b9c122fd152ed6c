"""Running out of memory, told from all other errors: it says nothing about what was tried."""

import torch

_ON_THE_CPU = "can't allocate memory"
"""What torch's CPU allocator says in a `RuntimeError`."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is no memory left, on whatever device."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or _ON_THE_CPU in str(error)
