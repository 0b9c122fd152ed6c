"""What targets of pictures are handed: classes or features of captions, and what guidance leads away from."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Condition:
    """What pictures are made after.

    Attributes:
        given: Classes `[batch]` int64, or caption features `[batch, caption, width]`.
        mask: `[batch, caption]` bool: positions that are not padding; None: all.
        null: What guidance leads away from: as `given`; None: the model's own null condition.
        null_mask: Of `null`; None: `mask`.
        guided: Whether there is an unconditional half at all.
    """

    given: Tensor
    mask: Tensor | None = None
    null: Tensor | None = None
    null_mask: Tensor | None = None
    guided: bool = True


def repeated(condition: Condition, times: int) -> Condition:
    """Every prompt so many times, its pictures together."""

    def more(values: Tensor | None) -> Tensor | None:
        return None if values is None else values.repeat_interleave(times, 0)

    given = condition.given.repeat_interleave(times, 0)
    return Condition(given, more(condition.mask), more(condition.null), more(condition.null_mask), condition.guided)


def joined(conditions: Sequence[Condition]) -> Condition:
    """Several in one batch, row by row."""

    def together(name: str) -> Tensor | None:
        parts = [getattr(condition, name) for condition in conditions]
        return None if parts[0] is None else torch.cat(parts)

    given = torch.cat([condition.given for condition in conditions])
    return Condition(given, together("mask"), together("null"), together("null_mask"), conditions[0].guided)
