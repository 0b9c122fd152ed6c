"""Which weights a live model has, as a text that files can hold: so that a part made for one model refuses another."""

import hashlib

import torch
from torch import nn

FIRST = 64
"""Numbers of every weight that count; no weight of a model that was trained further keeps them all."""


def identity(model: nn.Module) -> str:
    """A hash of the names, shapes and first numbers of all weights: 16 hexadecimal digits of SHA-256.

    The numbers are compared in bfloat16, so that a model has one identity in full and in half precision.

    Raises:
        ValueError: Some of its weights are not in memory.
    """
    hashed = hashlib.sha256()
    for name, weight in model.named_parameters():
        if weight.is_meta:
            raise ValueError(
                f"the weight {name} of {type(model).__name__} is offloaded, so that the model cannot be told from "
                "others; load it without offloading"
            )
        hashed.update(f"{name} {list(weight.shape)}".encode())
        numbers = weight.detach().flatten()[:FIRST].to("cpu", torch.bfloat16)
        hashed.update(numbers.contiguous().view(torch.uint8).numpy().data)
    return hashed.hexdigest()[:16]
