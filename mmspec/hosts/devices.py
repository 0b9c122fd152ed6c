"""Devices that weights can be brought to."""

from typing import Any

import torch


def refuse_device(device: Any) -> None:
    """Refuse a device that this machine does not have, before anything is loaded for it.

    Args:
        device: As torch takes it: its name, a number of CUDA's, or a `torch.device`.

    Raises:
        ValueError: Names it, and what there is.
    """
    try:
        torch.ones(1, device=device).item()  # on `meta` there is nothing to read
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        there = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
        raise ValueError(f"there is no device {device!r}; there is {', '.join(there)}") from error
