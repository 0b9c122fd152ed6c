"""Policies: how many units to draft. Under `match` a policy can never change the output.

A policy decides before the draw: `budget` before drafting, `trim` by scores that were known before a node's own unit
was drawn. Dropping a node because of its own unit would bias every rule that uses q.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Protocol, runtime_checkable

from pydantic import Field

from mmspec.core.types import Draft
from mmspec.registry.options import option


class Policy(Protocol):
    """The number of units to draft."""

    def budget(self) -> int:
        """Units to draft in this round; 0 is plain decoding."""

    def trim(self, draft: Draft) -> Draft:
        """Invalidate drafted nodes, or return the draft unchanged. The draft is not rooted yet."""

    def observe(self, depth: int, emitted: Sequence[int], seconds: float) -> None:
        """See a finished round, after its host sync.

        Args:
            depth: Depth of its draft; 0: no draft.
            emitted: Units that every row emitted, the bonus or residual unit included, 0 for finished rows; the row
                that has the fewest units so far comes first.
            seconds: Wall time of the whole round.
        """


@runtime_checkable
class Clocked(Protocol):
    """A policy whose budgets depend on measured times, so that two equal calls may draft differently."""

    clocked: ClassVar[bool]


@runtime_checkable
class Trimming(Protocol):
    """A policy that refuses nodes. Off the CPU budgets follow how many it kept in the round before."""

    trims: ClassVar[bool]


@runtime_checkable
class WidthAware(Protocol):
    """A policy that asks how many nodes a draft has."""

    def know(self, width: Callable[[int], int]) -> None:
        """Take the function that says how many nodes a draft of a depth has; it may be called once drafts are made."""


@dataclass(frozen=True)
class Fixed:
    """Always `k` units."""

    k: int  # units to draft

    def budget(self) -> int:
        return self.k

    def trim(self, draft: Draft) -> Draft:
        return draft

    def observe(self, depth: int, emitted: Sequence[int], seconds: float) -> None:
        pass


@dataclass(frozen=True)
class Confidence:
    """Up to `k` units, cut where the drafter's confidence falls below a threshold.

    On a GPU refused nodes are verified, too, and bound the next draft (`mmspec.core.budget`).
    """

    trims: ClassVar[bool] = True

    k: int  # most units to draft
    # Smallest confidence, in (0, 1): higher drafts less. The confidence of a node is the product of the largest
    # probabilities down to its own distribution: known before its own unit is drawn.
    threshold: float = 0.3

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise ValueError(f"threshold must lie between 0 and 1, got {self.threshold}")

    def budget(self) -> int:
        return self.k

    def trim(self, draft: Draft) -> Draft:
        if draft.score is None:  # the drafter states no confidence
            return draft
        return replace(draft, valid=draft.valid & (draft.score >= math.log(self.threshold)))

    def observe(self, depth: int, emitted: Sequence[int], seconds: float) -> None:
        pass


@dataclass(frozen=True)
class ConfidenceOptions:
    """Options of the policy `confidence`."""

    threshold: Annotated[float, Field(gt=0, lt=1)] = option(
        0.3, "stop drafting where survival falls below this; higher drafts less"
    )


def confidence(k: int, options: ConfidenceOptions) -> Confidence:
    """`Confidence` with its options."""
    return Confidence(k, options.threshold)
