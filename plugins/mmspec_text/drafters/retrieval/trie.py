"""The trie of retrieved continuations: its most frequent prefixes are a draft tree.

REST (He et al., arXiv 2311.08252): all prefixes of the continuations are counted, and the most frequent ones are kept.
A prefix is never less frequent than what continues it, so that they are a tree.
"""

from typing import NamedTuple

import numpy as np


class Node(NamedTuple):
    """A prefix of continuations."""

    unit: int  # its last unit
    parent: int  # index of the prefix without it; -1: there is none
    times: int  # how many continuations begin with it


def most_frequent(continuations: np.ndarray, nodes: int) -> list[Node]:
    """The most frequent prefixes, of equals the shorter first, then those of smaller ids; parents precede children.

    `continuations [place, length]` are units, negative ones behind the end.
    """
    found: list[Node] = []
    prefix = np.full(len(continuations), -1)  # of every continuation, the prefix so far
    alive = np.arange(len(continuations))
    for column in continuations.T:
        alive = alive[column[alive] >= 0]
        pairs, which, counts = np.unique(
            np.stack([prefix[alive], column[alive]], 1), axis=0, return_inverse=True, return_counts=True
        )
        prefix[alive] = len(found) + which.reshape(-1)
        found += [Node(int(unit), int(parent), int(count)) for (parent, unit), count in zip(pairs, counts, strict=True)]
    chosen = sorted(range(len(found)), key=lambda place: (-found[place].times, place))[:nodes]
    new = {place: index for index, place in enumerate(chosen)} | {-1: -1}
    return [Node(found[place].unit, new[found[place].parent], found[place].times) for place in chosen]
