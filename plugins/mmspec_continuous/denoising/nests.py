"""Nests of mappings (diffusers' outputs too), lists and tuples: a denoiser's conditions, and what it returns."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def map_leaves(nest: Any, change: Callable[[Any], Any]) -> Any:
    """A nest of the same types with every leaf replaced by `change(leaf)`."""
    if isinstance(nest, Mapping):
        changed = {name: map_leaves(inner, change) for name, inner in nest.items()}
        return type(nest)(**changed) if type(nest) is not dict else changed
    if isinstance(nest, (list, tuple)):
        return type(nest)(map_leaves(inner, change) for inner in nest)
    return change(nest)


def leaves_of(nest: Any) -> list[Any]:
    """All leaves of a nest, in the order of `map_leaves`."""
    found: list[Any] = []
    map_leaves(nest, found.append)
    return found


def prediction_in(output: Any) -> Tensor | None:
    """The prediction in what a denoiser returned: its first entry; None where that is no tensor."""
    if isinstance(output, Mapping):
        output = next(iter(output.values()), None)
    elif isinstance(output, (list, tuple)):
        output = output[0]
    return output if isinstance(output, Tensor) else None


def equal_nests(a: Any, b: Any) -> bool:
    """Whether two nests have the same structure and equal leaves."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.shape == b.shape and bool(torch.equal(a, b))
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(equal_nests(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal_nests, a, b))
    return bool(a == b)
