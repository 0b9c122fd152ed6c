"""Numbers of the host on a device, without a wait.

A copy of pageable memory to CUDA waits for everything that the device still does; one of pinned memory does not.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_SHARED = ("cpu", "mps", "meta")
"""Kinds of devices for which memory is not pinned."""


def on_device(numbers: Sequence[Any], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """A list, or a nested one, as a tensor on a device."""
    return moved(torch.tensor(numbers, dtype=dtype, device="cpu"), device)


def moved(values: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device; one that is on a device already goes to it directly."""
    if device.type in _SHARED or values.device.type != "cpu":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


_WITHOUT_FLOAT64 = {"mps"}
"""Kinds of devices that have no float64."""


def widest(device: torch.device) -> torch.dtype:
    """float64, or float32 on a device that has no float64."""
    return torch.float32 if device.type in _WITHOUT_FLOAT64 else torch.float64
