"""Conditions of picture targets: classes or features of captions, and the null condition for guidance."""

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor


class Guiding(NamedTuple):
    """The condition of a call's pictures, and the one that guidance leads away from; targets' conditions have it."""

    given: Tensor  # one row a picture: classes `[batch]`, features `[batch, n, width]`, or ids of a prompt `[batch, n]`
    mask: Tensor | None  # `[batch, n]`: positions that are not padding; None: all
    null: Tensor | None  # what guidance leads away from, maybe of another length; None: the model's own
    null_mask: Tensor | None  # the mask of `null`; or None


@dataclass(frozen=True)
class Condition:
    given: Tensor  # classes `[batch]` int64, or caption features `[batch, caption, width]`
    mask: Tensor | None = None  # `[batch, caption]` bool: positions that are not padding; None: all
    # What guidance leads away from, in the form of `given`; None: the model's own null condition
    null: Tensor | None = None
    null_mask: Tensor | None = None  # the mask of `null`; None: `mask`
    guided: bool = True  # whether there is guidance, and so an unconditional half

    @property
    def guiding(self) -> Guiding:
        return Guiding(self.given, self.mask, self.null, self.null_mask)


Some = TypeVar("Some", bound=Condition)


def repeated(condition: Some, times: int) -> Some:
    """Every row `times` times; the rows of a prompt stay together."""
    values = {field.name: getattr(condition, field.name) for field in fields(condition)}
    rows = {name: value for name, value in values.items() if isinstance(value, Tensor) and value.dim()}
    more: dict[str, Any] = {name: value.repeat_interleave(times, 0) for name, value in rows.items()}
    return replace(condition, **more)


def lengthened(features: Tensor, mask: Tensor | None, length: int) -> tuple[Tensor, Tensor | None]:
    """Features `[batch, n, width]` with padding on the left up to `length` positions, and their mask; classes
    `[batch]`, and features that are long enough, stay as they are.
    """
    missing = length - features.shape[1] if features.dim() == 3 else 0
    if missing <= 0:
        return features, mask
    seen = torch.ones(features.shape[:2], device=features.device) if mask is None else mask
    return _padded(features, length), _padded(seen.bool(), seen.shape[1] + missing)


def replaced(null: Tensor, mask: Tensor | None, row: int, by: Guiding) -> tuple[Tensor, Tensor | None]:
    """A null condition `[batch, n, …]` with a row replaced by what one picture shows, and its mask `[batch, n]` (None:
    no padding); what is shorter is padded on the left.
    """
    new = by.given.to(null)
    seen = torch.ones(null.shape[:2], device=null.device) if mask is None else mask
    own = seen.new_ones(new.shape[:2]) if by.mask is None else by.mask.to(seen)
    longest = max(null.shape[1], new.shape[1])
    null, new, seen, own = (_padded(each, longest) for each in (null, new, seen, own))
    null[row], seen[row] = new[0], own[0]
    return null, None if bool(seen.all()) else seen


def _padded(values: Tensor, length: int) -> Tensor:
    """A copy of `[batch, n, …]` with zeros on the left, `[batch, length, …]`."""
    whole = values.new_zeros(len(values), length, *values.shape[2:])
    whole[:, length - values.shape[1] :] = values
    return whole
