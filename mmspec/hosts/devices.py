"""Devices of models: a check that one exists, before weights are loaded for it, and what suits it."""

from typing import Any

import torch
from torch import nn


def refuse_device(device: Any) -> None:
    """Refuse a device that this machine does not have, before anything is loaded for it.

    Args:
        device: The device as torch takes it: a name, a CUDA number, or a `torch.device`.

    Raises:
        ValueError: The device does not exist; the message lists those that do.
    """
    try:
        torch.ones(1, device=device).item()  # on `meta` there is nothing to read
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        existing = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
        raise ValueError(f"there is no device {device!r}; there is {', '.join(existing)}") from error


def half_on_gpu(model: nn.Module) -> bool:
    """Whether a model's weights are on CUDA in half precision."""
    first = next(model.parameters(), None)
    return first is not None and first.device.type == "cuda" and first.dtype in (torch.float16, torch.bfloat16)
