"""Heads that are loaded again for the same target, for whose drafts compiled functions are there already.

A decoder may be put together for every call, and reads its head anew; compiling takes longer than most calls.
"""

from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from mmspec_text.drafters.heads.head import Borrowing

NAME = "_mmspec_heads"
"""The attribute of a target's embedding that holds its heads."""
MOST = 4
"""Heads that are kept for a target."""


class _Heads:
    """Heads of one target, the latest one last. A copy is empty: they hold the target's modules."""

    def __init__(self) -> None:
        self.heads: list[Any] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Heads":
        return _Heads()

    def __reduce__(self) -> tuple[type["_Heads"], tuple[()]]:
        return _Heads, ()


def twin_of(head: Borrowing, embedding: nn.Module) -> Any:
    """An earlier head that drafts as this one does, for the same target; or the head itself, which is kept."""
    known = vars(embedding).setdefault(NAME, _Heads()).heads
    twin = next((other for other in reversed(known) if other is head or _same(other, head)), head)
    known[:] = [*[other for other in known if other is not twin][1 - MOST :], twin]
    return twin


def _same(one: Any, other: Any) -> bool:
    """Whether two heads have the same class, settings, target and weights."""
    if type(one) is not type(other) or _settings(one) != _settings(other):
        return False
    if any(a is not b for a, b in zip(one.borrowed, other.borrowed, strict=True)):
        return False
    mine, its = _tensors(one), _tensors(other)
    return mine.keys() == its.keys() and all(
        (value.device, value.dtype) == (its[name].device, its[name].dtype) and torch.equal(value, its[name])
        for name, value in mine.items()
    )


def _tensors(head: nn.Module) -> dict[str, Tensor]:
    return dict(chain(head.named_parameters(), head.named_buffers()))


def _settings(head: Any) -> dict[str, Any]:
    """The plain attributes of a head; those of torch begin with an underscore."""
    return {name: value for name, value in vars(head).items() if not name.startswith("_")}
