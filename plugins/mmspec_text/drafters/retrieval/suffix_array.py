"""The places of an n-gram in a corpus that does not change, by a suffix array.

It has all positions of the corpus, sorted by the units from there on, so that an n-gram is a range: the retrieval of
REST (arXiv 2311.08252), whose published index stores tokens in 16 bits and so confuses tokens above 65,535; here they
are int32. Prefix doubling sorts by 1, 2, 4, … units up to the longest n-gram.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

from mmspec.kits.text.corpus import documents_of

BREAK = -1
"""The id between documents; no n-gram crosses it."""


class SuffixArray:
    """All places of a corpus: ids, or a list of documents of ids."""

    def __init__(self, ids: Sequence[int] | Sequence[Sequence[int]], shortest: int, longest: int) -> None:
        self.shortest = shortest
        self.longest = longest
        pieces = [piece for document in documents_of(ids) for piece in (document, np.array([BREAK], np.int32))]
        flat = np.concatenate(pieces)
        self.largest = int(flat.max())
        self._ids = np.concatenate([flat, np.full(longest + 1, BREAK, np.int32)])
        self._order = _sorted_places(flat, longest)

    def continuations(self, text: Sequence[int], most: int, length: int) -> tuple[np.ndarray, int]:
        """The continuation of the longest suffix of a text that the corpus has, and `length` units behind it.

        That is `[place, length]` int32, `BREAK` behind the end of a document, and the suffix's length, 0 if there is
        none. Of more than `most` places, evenly spread ones are taken.
        """
        for matched in range(min(self.longest, len(text)), self.shortest - 1, -1):
            first, last = self._range(text[-matched:])
            places = self._order[first:last].astype(np.int64) + matched
            places = places[self._ids[places] != BREAK]
            if len(places):
                if len(places) > most:
                    places = places[np.arange(most) * len(places) // most]
                found = self._ids[(places[:, None] + np.arange(length)).clip(max=len(self._ids) - 1)]
                return np.where(np.cumsum(found == BREAK, 1) > 0, BREAK, found), matched
        return np.zeros((0, length), np.int32), 0

    def _range(self, gram: Sequence[int]) -> tuple[int, int]:
        """Where in the order the positions are from which an n-gram begins: from one, up to another."""
        first, last = 0, len(self._order)
        for offset, unit in enumerate(gram):
            if first == last:
                break
            shown = self._ids[offset:]
            first = bisect_left(self._order, unit, first, last, key=shown.__getitem__)
            last = bisect_right(self._order, unit, first, last, key=shown.__getitem__)
        return first, last


def _sorted_places(ids: np.ndarray, longest: int) -> np.ndarray:
    """All positions in `ids`, sorted by the first `longest` units from there on: `[len(ids)]` int32."""
    rank = np.unique(ids, return_inverse=True)[1].astype(np.int64) + 1  # 0 stands for the end
    order, known = np.argsort(rank, kind="stable"), 1
    while known < longest:
        later = np.zeros_like(rank)
        later[:-known] = rank[known:]
        key = rank * (len(ids) + 2) + later
        order, known = np.argsort(key, kind="stable"), 2 * known
        ranked = key[order]
        rank[order] = np.concatenate([[0], (ranked[1:] != ranked[:-1]).cumsum()]) + 1
    return order.astype(np.int32 if len(ids) < 2**31 else np.int64)
