"""Nodes in parts: what a rule computes over the vocabulary is held for few nodes at a time."""

NUMBERS = 2**22
"""The most numbers of one float tensor over the vocabulary (of a single node there may be more)."""


def parts(rows: int, nodes: int, size: int) -> list[slice]:
    """The nodes `0 … nodes - 1` in parts of equal size but for the last; a single part where that is small."""
    most = max(1, NUMBERS // max(1, rows * size))
    return [slice(first, min(first + most, nodes)) for first in range(0, nodes, most)]
