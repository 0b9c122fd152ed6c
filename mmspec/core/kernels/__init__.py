"""Triton kernels for what a round computes over the vocabulary and over the cache, and when they run.

Every kernel stands for a function of the library that is written in torch, which is its reference: the same draws, the
same paths, up to the rounding of a logarithm. Who calls a kernel asks `available` first; without it, and in cases that
a kernel does not cover, torch computes the same. The modules of kernels import Triton, so they are imported inside
functions, behind that question.

Triton is no dependency: torch brings it along on CUDA. With `TRITON_INTERPRET=1` in the environment its interpreter
runs the kernels on the CPU, a thousand times slower, for tests.
"""

import os
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec

import torch
from torch import Tensor

OLDEST = (7, 0)
"""The least compute capability for which Triton compiles."""


def available(device: torch.device) -> bool:
    """True if kernels run on a device; the answer does not change while the process lives."""
    return not why_not(device.type, device.index)


def beside(tensor: Tensor) -> AbstractContextManager[object]:
    """A block in which Triton launches on the tensor's device; it launches on the current one, whatever it is given."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def why_not(kind: str, index: int | None = None) -> str:
    """A sentence on why kernels do not run on a device; "" if they do. No index: the current device of the kind."""
    if (kind, index) not in _answers:
        _answers[kind, index] = _looked_up(kind, index)
    return _answers[kind, index]


_answers: dict[tuple[str, int | None], str] = {}
"""Answers given so far. A dictionary, because torch reads one while it traces, and traces through `functools.cache`."""


def _looked_up(kind: str, index: int | None) -> str:
    if kind == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return "the CPU runs the torch references: Triton's kernels need CUDA."
    if kind not in ("cpu", "cuda"):
        return f"the torch references run on {kind}: Triton's kernels need CUDA."
    if find_spec("triton") is None:
        return "Triton is not installed, so the torch references run: pip install triton."
    if kind == "cuda" and (found := torch.cuda.get_device_capability(index)) < OLDEST:
        needs, has = (".".join(map(str, version)) for version in (OLDEST, found))
        return f"Triton needs compute capability {needs} and this device has {has}, so the torch references run."
    return ""
