"""What a shape is: it looks at the distributions after a frontier of nodes, and says what hangs on them and what is
fed next.

A draft model grows a tree level by level. The frontier is what it scored last (first the root alone); a shape draws the
next level's nodes and names those among them that become the next frontier.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from mmspec.core.distributions import Distribution
from mmspec.core.noise import Noise


@dataclass(frozen=True)
class Frontier:
    """The nodes that a level may hang on, `m` of them in every row.

    Attributes:
        distribution: The small model's distribution after each, `[batch, m]`, under the call's own warp.
        noise: For one draw, or one race, at each: `[batch, m]`.
        score: `[batch, m]` of the nodes themselves, as their shape gave it; 0 at the root.
        greedy: Children are the likeliest units of `distribution`: nothing is drawn.
        wants_distribution: Children are sampled with noise of their own, so that a rule will want to know their
            distribution.
        carried: What the last level left (`Level.carried`); None at the root.
    """

    distribution: Distribution
    noise: Noise
    score: Tensor
    greedy: bool
    wants_distribution: bool
    carried: Any = None


@dataclass(frozen=True)
class Level:
    """The `n` nodes that were hung on a frontier; earlier siblings first.

    Attributes:
        units: `[batch, n, *unit]`.
        parent: Place in the frontier that each hangs on: `[batch, n]`, or `[1, n]` for all rows.
        score: `[batch, n]`, as in `Draft`.
        valid: `[batch, n]` bool; False where the distribution had too few units.
        distribution: What the units were drawn from, `[batch, n]`, where the frontier asked for it.
        frontier: Places among these nodes of those to feed next, `[batch, w]`; None feeds all.
        carried: For the shape's own next level.
    """

    units: Tensor
    parent: Tensor
    score: Tensor
    valid: Tensor
    distribution: Distribution | None = None
    frontier: Tensor | None = None
    carried: Any = None


class Shape(Protocol):
    """Which nodes there are.

    Attributes:
        offers: `chain` or `tree`, and `q` where drafts carry a distribution.
        needs: Words that target and rule must offer between them.
        widest: Most siblings.
    """

    offers: frozenset[str]
    needs: frozenset[str]

    @property
    def widest(self) -> int:
        """Most siblings of a node: a vocabulary must have as many units."""
        ...

    def levels(self, k: int) -> int:
        """Levels of a tree of budget `k`."""
        ...

    def width(self, k: int) -> int:
        """Drafted nodes at most, the root not counted."""
        ...

    def fed(self, k: int) -> int:
        """Nodes that go through the small model at most, the root not counted."""
        ...

    def parents(self, k: int) -> tuple[int, ...] | None:
        """Parents of the drafted nodes, -1 for the root, where all rows share one tree and feed all of it; or None."""
        ...

    def level(self, frontier: Frontier, depth: int) -> Level:
        """The nodes at `depth`, on the device, without a host sync."""
        ...

    def choose(self, score: Tensor) -> Tensor | None:
        """Of all nodes, `score [batch, node]`, the ids to verify, ascending, `[batch, n]`; None verifies all."""
        ...
