"""The shape of a draft tree: which children a draft model's nodes get, and which of them it is fed next.

A draft model grows a tree level by level. The frontier is the nodes that it scored last (first the root alone). A shape
draws the children of the frontier, which are the next level, and chooses among them the next frontier.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from mmspec.core.distributions import Distribution
from mmspec.core.noise import Noise


@dataclass(frozen=True)
class Frontier:
    """The nodes that get children next, `m` of them in every row."""

    distribution: Distribution  # the draft model's distribution after each, `[batch, m]`, under the call's warp
    noise: Noise  # for one draw, or one race, at each: `[batch, m]`
    score: Tensor  # `[batch, m]`: `Level.score` of these nodes; 0 at the root
    greedy: bool  # children are the likeliest units of `distribution`, without noise
    wants_distribution: bool  # children are sampled with fresh noise, so that the rule will need their distribution
    carried: Any = None  # `Level.carried` of the level that these nodes are from; None at the root
    auxiliary: Tensor | None = None  # `TargetOutput.auxiliary` of the draft model at these nodes, `[batch, m, …]`


@dataclass(frozen=True)
class Level:
    """The `n` children of a frontier; siblings are in the order in which they were drawn."""

    units: Tensor  # `[batch, n, *unit]`
    parent: Tensor  # index of each node's parent in the frontier: `[batch, n]`, or `[1, n]` for all rows
    score: Tensor  # `[batch, n]`, as in `Draft`
    valid: Tensor  # `[batch, n]` bool; False where the distribution had too few units
    distribution: Distribution | None = None  # what the units were drawn from, `[batch, n]`, if asked for
    frontier: Tensor | None = None  # indices of the nodes that are the next frontier, `[batch, w]`; None: all
    carried: Any = None  # state for the shape's next level


class Shape(Protocol):
    """The shape of a draft tree."""

    @property
    def offers(self) -> frozenset[str]:
        """`chain` or `tree`, and `q` if drafts have a distribution."""

    @property
    def needs(self) -> frozenset[str]:
        """Words that target and rule together must offer."""

    @property
    def widest(self) -> int:
        """Most siblings of a node: the vocabulary must have that many units."""

    def levels(self, k: int) -> int:
        """Number of levels of a tree of budget `k`."""

    def width(self, k: int) -> int:
        """Most drafted nodes, the root not counted."""

    def fed(self, k: int) -> int:
        """Most nodes that the draft model is fed, the root not counted."""

    def parents(self, k: int) -> tuple[int, ...] | None:
        """Parents of the drafted nodes, -1 for the root, if all rows have the same tree and all is fed; else None."""

    def level(self, frontier: Frontier, depth: int) -> Level:
        """The nodes at `depth`. No host sync."""

    def choose(self, score: Tensor) -> Tensor | None:
        """The nodes to verify, given all nodes' `score [batch, node]`: ascending ids `[batch, n]`; None: all."""


@runtime_checkable
class Ending(Protocol):
    """A shape whose drafts may end before their last level.

    Attributes:
        ends: Whether they do; asking costs a host sync.
    """

    @property
    def ends(self) -> bool:
        """See the class."""

    def ended(self, level: Level) -> bool:
        """True if no row drafts behind this level."""
