"""The trace of a round: the units that it emitted, and its draft."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TracedNode:
    unit: int
    parent: int  # number of the parent among the round's nodes; -1: the root
    accepted: bool  # whether the rule accepted it
    probability: float  # the target's probability of the unit behind its parent


@dataclass(frozen=True)
class TracedRound:
    """The trace of a round in one row."""

    first: int  # number of its first unit among those that the row emitted
    units: tuple[int, ...]  # the units that it emitted, the bonus or replacement last
    probabilities: tuple[float, ...]  # the target's probability of each
    margins: tuple[float, ...]  # by how much the likeliest unit was likelier than the second, where each was drawn
    nodes: tuple[TracedNode, ...]  # the draft
