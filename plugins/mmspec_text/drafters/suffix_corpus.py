"""A corpus as a suffix array: all its positions, sorted by the units from there on, so that an n-gram is a range.

This is the retrieval of REST (arXiv 2311.08252), whose published index stores tokens in 16 bits and so confuses tokens
above 65,535; here they are int32. Prefix doubling sorts by 1, 2, 4, … units up to the longest n-gram.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np

from mmspec_text.drafters.suffix_statistics import Guess

BREAK = -1
"""The id between documents; no n-gram crosses it."""


class SuffixArray:
    """Counts (`Statistics`) of a corpus that does not change: ids, or a list of documents of ids."""

    def __init__(self, ids: Sequence[int] | Sequence[Sequence[int]], shortest: int, longest: int) -> None:
        self.shortest = shortest
        self.longest = longest
        flat = _flat(ids)
        self.largest = int(flat.max())
        self._ids = np.concatenate([flat, np.full(longest + 1, BREAK, np.int32)])
        self._order = _sorted_places(flat, longest)

    def refuse_other_ids(self, vocab: int) -> None:
        """Refuse a target of another tokenizer."""
        if self.largest >= vocab:
            raise ValueError(
                f"the corpus has token id {self.largest} and the target's are 0 … {vocab - 1}; "
                "it was made with another tokenizer"
            )

    def guess(self, text: Sequence[int]) -> Guess | None:
        """See `Statistics`; among equally frequent continuations, the smallest id."""
        low, high = self.shortest, min(self.longest, len(text))
        best: Guess | None = None
        while low <= high:  # if a suffix occurs, all shorter ones occur
            middle = (low + high + 1) // 2
            guess = self._after(text[-middle:])
            if guess is None:
                high = middle - 1
            else:
                best, low = guess, middle + 1
        return best

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

    def _after(self, gram: Sequence[int]) -> Guess | None:
        """The most frequent unit after an n-gram; None if the corpus does not have it."""
        first, last = self._range(gram)
        if first == last:
            return None
        followers = self._ids[self._order[first:last] + len(gram)]
        units, counts = np.unique(followers[followers != BREAK], return_counts=True)
        if not len(units):
            return None
        top = int(counts.argmax())
        return Guess(int(units[top]), int(counts[top]), int(counts.sum()), len(gram))

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


def _flat(ids: Any) -> np.ndarray:
    """The documents in one array of int32, each followed by `BREAK`."""
    nested = isinstance(ids, (list, tuple)) and any(isinstance(document, (list, tuple)) for document in ids)
    documents = [np.asarray(document) for document in ids] if nested else [np.asarray(ids)]
    for document in documents:
        if document.ndim != 1 or (len(document) and document.dtype.kind not in "iu"):
            raise ValueError("a corpus is a list of token ids, or a list of such lists")
        if len(document) and not 0 <= int(document.min()) <= int(document.max()) < 2**31:
            raise ValueError(f"token ids are 0 … 2**31 - 1, the corpus has {document.min()} … {document.max()}")
    if not any(len(document) for document in documents):
        raise ValueError("the corpus is empty")
    pieces = [piece for document in documents for piece in (document.astype(np.int32), np.array([BREAK], np.int32))]
    return np.concatenate(pieces)


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
