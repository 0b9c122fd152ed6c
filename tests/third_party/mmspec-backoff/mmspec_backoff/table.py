"""Counts of what followed every n-gram, read from the longest n-gram down."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from typing import TypeVar

U = TypeVar("U", bound=Hashable)


class Table:
    """Counts of one text.

    Args:
        order: Longest n-gram; longer ones agree more and are found less often.
        least: How often an n-gram must have been seen to be believed.
    """

    def __init__(self, order: int, least: int = 1) -> None:
        self._order, self._least, self._read = order, least, 0
        self._counts: dict[tuple, Counter] = defaultdict(Counter)

    def learn(self, text: Sequence[U]) -> None:
        """Read on: a text that begins as the last one did."""
        for end in range(max(self._read, 1), len(text)):
            for n in range(1, min(self._order, end) + 1):
                self._counts[tuple(text[end - n : end])][text[end]] += 1
        self._read = len(text)

    def follow(self, text: Sequence[U], k: int) -> list[U]:
        """Up to `k` units that the counts put after a text."""
        path = list(text[-self._order :])
        for _ in range(k):
            following = self._next(path)
            if following is None:
                break
            path.append(following)
        return path[min(self._order, len(text)) :]

    def _next(self, path: Sequence[U]) -> U | None:
        for n in range(min(self._order, len(path)), 0, -1):
            seen = self._counts.get(tuple(path[-n:]))
            if seen and seen.total() >= self._least:
                return seen.most_common(1)[0][0]
        return None
