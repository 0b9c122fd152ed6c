"""How many units to speculate. Under `match` a policy can never change the output.

A policy decides before the draw: `budget` before drafting, `trim` by scores that were known before a node's own unit
was drawn. Dropping a node because of its own unit biases every rule that uses q.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, runtime_checkable

from mmspec.core.types import Draft


class Policy(Protocol):
    """Speculation length."""

    def budget(self) -> int:
        """Units to draft in this round; 0 is plain decoding."""
        ...

    def trim(self, draft: Draft) -> Draft:
        """Refuse drafted nodes, or return the draft as it is. The draft is not rooted yet."""
        ...

    def observe(self, depth: int, emitted: Sequence[int], seconds: float) -> None:
        """A round is over, its host sync included.

        Args:
            depth: How deep its draft was; 0: no draft.
            emitted: Units of every row, the bonus or residual unit included, 0 of rows that had ended; the row that
                is furthest behind comes first.
            seconds: Wall time of the whole round.
        """
        ...


@runtime_checkable
class Clocked(Protocol):
    """A policy whose budgets follow measured times, so that two equal calls may draft differently."""

    clocked: ClassVar[bool]


@dataclass(frozen=True)
class Fixed:
    """Always `k` units.

    Attributes:
        k: Units to draft.
    """

    k: int

    def budget(self) -> int:
        return self.k

    def trim(self, draft: Draft) -> Draft:
        return draft

    def observe(self, depth: int, emitted: Sequence[int], seconds: float) -> None:
        pass


@dataclass(frozen=True)
class Confidence:
    """Up to `k` units, cut where the drafter's survival falls below a threshold.

    Attributes:
        k: Most units to draft.
        threshold: Smallest survival probability, in (0, 1): higher drafts less. Survival is the product of the largest
            probabilities down to a node's distribution: known before the node's own unit is drawn.
    """

    k: int
    threshold: float = 0.3

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise ValueError(f"threshold must lie between 0 and 1, got {self.threshold}")

    def budget(self) -> int:
        return self.k

    def trim(self, draft: Draft) -> Draft:
        if draft.score is None:  # a drafter without confidence is drafted in full
            return draft
        return replace(draft, valid=draft.valid & (draft.score >= math.log(self.threshold)))

    def observe(self, depth: int, emitted: Sequence[int], seconds: float) -> None:
        pass
