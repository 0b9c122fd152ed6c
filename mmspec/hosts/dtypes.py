"""Kinds of numbers that weights can be loaded in, by name."""

import torch

from mmspec.registry.suggest import unknown

NAMES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}
SHORT = {"fp32": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp64": "float64"}


def dtype_of(dtype: str | torch.dtype | None, torch_dtype: str | torch.dtype | None = None) -> torch.dtype:
    """What was asked for, under either of its two names; float32, where nothing was.

    Raises:
        ValueError: There is no such kind of floating-point numbers, or the two differ.
    """
    given = [_known(each) for each in (dtype, torch_dtype) if each is not None]
    if len(set(given)) > 1:
        raise ValueError(f"dtype={dtype} and torch_dtype={torch_dtype} are one setting; give one of them")
    return given[0] if given else torch.float32


def _known(given: str | torch.dtype) -> torch.dtype:
    name = str(given).removeprefix("torch.")
    if name not in NAMES:
        raise ValueError(unknown("dtype of weights", name, NAMES, SHORT))
    return NAMES[name]
