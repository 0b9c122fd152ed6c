"""Where a benchmark ran: device and versions, in words."""

import platform
from importlib.metadata import version
from pathlib import Path

import torch

PACKAGES = ("mmspec", "torch", "transformers")


def describe(device: str) -> str:
    """The processor and its threads, or the GPU."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    names = [line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' * (threads > 1)}"


def versions() -> dict[str, str]:
    """Of what decides about speed."""
    return {name: version(name) for name in PACKAGES} | {"python": platform.python_version()}


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.is_file() else []
