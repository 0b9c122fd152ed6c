"""The widest floating-point dtype of a device. Sums that should round little are made in it."""

import torch

_WITHOUT_FLOAT64 = {"mps"}
"""Kinds of devices that have no float64."""


def widest(device: torch.device) -> torch.dtype:
    """float64, or float32 on a device that has no float64."""
    return torch.float32 if device.type in _WITHOUT_FLOAT64 else torch.float64
