"""What a trace keeps of a round: the units that it emitted, and its draft."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TracedNode:
    """A drafted node.

    Attributes:
        unit: The unit.
        parent: Number of the parent among the round's nodes; -1: the root.
        accepted: Whether the rule accepted it.
        probability: The target's probability of the unit behind its parent.
    """

    unit: int
    parent: int
    accepted: bool
    probability: float


@dataclass(frozen=True)
class TracedRound:
    """What a round did in one row.

    Attributes:
        first: Number of its first unit among those that the row emitted.
        units: The units that it emitted, the bonus or replacement last.
        probabilities: The target's probability of each.
        margins: By how much the likeliest unit was likelier than the second, where each was drawn.
        nodes: The draft.
    """

    first: int
    units: tuple[int, ...]
    probabilities: tuple[float, ...]
    margins: tuple[float, ...]
    nodes: tuple[TracedNode, ...]
