"""Conditions of picture targets: classes or features of captions, and the null condition for guidance."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Condition:
    """The condition of a batch of pictures.

    Attributes:
        given: Classes `[batch]` int64, or caption features `[batch, caption, width]`.
        mask: `[batch, caption]` bool: positions that are not padding; None: all.
        null: What guidance leads away from, in the form of `given`; None: the model's own null condition.
        null_mask: The mask of `null`; None: `mask`.
        guided: Whether there is guidance, and so an unconditional half.
    """

    given: Tensor
    mask: Tensor | None = None
    null: Tensor | None = None
    null_mask: Tensor | None = None
    guided: bool = True


Some = TypeVar("Some", bound=Condition)


def repeated(condition: Some, times: int) -> Some:
    """Every row `times` times; the rows of a prompt stay together."""
    values = {field.name: getattr(condition, field.name) for field in fields(condition)}
    rows = {name: value for name, value in values.items() if isinstance(value, Tensor) and value.dim()}
    more: dict[str, Any] = {name: value.repeat_interleave(times, 0) for name, value in rows.items()}
    return replace(condition, **more)


def joined(conditions: Sequence[Some]) -> Some:
    """Several conditions in one batch, row by row; a number that they do not share becomes one a row.

    Raises:
        ValueError: Only some conditions have a mask, a null condition of their own, or guidance.
    """
    together = dict[str, Any]()
    for name in (field.name for field in fields(conditions[0])):
        values = [getattr(condition, name) for condition in conditions]
        if not any(isinstance(value, Tensor) for value in values) and len(set(values)) == 1:
            continue
        if any(value is None or isinstance(value, bool) for value in values):
            raise ValueError(f"a batch has {name} for all of its rows or for none, and here only some have it")
        together[name] = torch.cat([_by_row(*both) for both in zip(values, conditions, strict=True)])
    return replace(conditions[0], **together)


def _by_row(value: Tensor | float, condition: Condition) -> Tensor:
    """`[batch, …]` of a value that may be one number for all rows."""
    given = condition.given
    value = torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else torch.float32, device=given.device)
    return value if value.dim() else value.expand(len(given))
