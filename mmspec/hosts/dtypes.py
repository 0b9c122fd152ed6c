"""The floating-point dtypes in which weights can be loaded, by name."""

import torch

from mmspec.registry.suggest import unknown

NAMES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}
SHORT = {"fp32": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp64": "float64"}


def dtype_of(dtype: str | torch.dtype | None, torch_dtype: str | torch.dtype | None = None) -> torch.dtype:
    """The dtype of weights that a user named; float32 by default.

    `torch_dtype` is the same setting under diffusers' name.

    Raises:
        ValueError: There is no such floating-point dtype, or the two arguments differ.
    """
    named = [_dtype(each) for each in (dtype, torch_dtype) if each is not None]
    if len(set(named)) > 1:
        raise ValueError(f"dtype={dtype} and torch_dtype={torch_dtype} are one setting; give one of them")
    return named[0] if named else torch.float32


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    name = str(dtype).removeprefix("torch.")
    if name not in NAMES:
        raise ValueError(unknown("dtype of weights", name, NAMES, SHORT))
    return NAMES[name]
