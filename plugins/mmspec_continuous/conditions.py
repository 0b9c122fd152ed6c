"""The prompt of targets of continuous tokens: a condition, and the scale of its guidance.

The scale is not part of the core's warp, which combines logits: here guidance is part of the distribution.
"""

from dataclasses import dataclass

from torch import Tensor

from mmspec.kits.pictures.conditions import Condition


@dataclass(frozen=True)
class Guided(Condition):
    """A condition under guidance."""

    # Guidance scale, one for all or `[batch]`: 1 is no guidance; larger leads away from the null condition
    scale: float | Tensor = 1.0

    @classmethod
    def of(cls, condition: Condition, scale: float | Tensor) -> "Guided":
        """The same condition under a scale."""
        return cls(**{**vars(condition), "scale": scale})
