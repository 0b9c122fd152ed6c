"""torch's autocast around passes: what it does to a model, and operations that must not be subject to it."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from mmspec.hosts.offload import device_of


def autocast_dtype(model: Any) -> torch.dtype | None:
    """The dtype of autocast on a model's device at present; None if it is off."""
    kind = device_of(model).type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """A block in which autocast is off on a device."""
    if not torch.is_autocast_enabled(device.type):  # most calls; and torch knows no autocast for some devices
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
