"""What targets of continuous tokens are handed: a condition, and how strongly it is followed.

Guidance is no business of the core's warp here: there are no logits that it could combine. It is part of the
distribution.
"""

from dataclasses import dataclass

from torch import Tensor

from mmspec.kits.pictures.conditions import Condition


@dataclass(frozen=True)
class Guided(Condition):
    """A condition under guidance.

    Attributes:
        scale: 1 follows the condition as it is; more leads away from the null condition. One for all, or `[batch]`.
    """

    scale: float | Tensor = 1.0

    @classmethod
    def of(cls, condition: Condition, scale: float | Tensor) -> "Guided":
        """The same condition under a scale."""
        return cls(condition.given, condition.mask, condition.null, condition.null_mask, condition.guided, scale)
