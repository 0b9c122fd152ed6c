"""The machine that a benchmark ran on: its device and the versions of the software, in words."""

import platform
from importlib.metadata import version
from pathlib import Path

import torch

PACKAGES = ("mmspec", "torch", "transformers")


def describe(device: str) -> str:
    """Name of the processor and its number of threads, or name of the GPU."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    names = [line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' * (threads > 1)}"


def versions() -> dict[str, str]:
    """Versions of the packages that decide about speed, and of Python."""
    return {name: version(name) for name in PACKAGES} | {"python": platform.python_version()}


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.is_file() else []
