"""A corpus as a suffix array: all its places, sorted by what stands there, so that an n-gram is a range of them.

The retrieval of REST (arXiv 2311.08252), whose published index keeps tokens in 16 bits and so confuses those above
65,535; here they are int32. Prefix doubling sorts by 1, 2, 4, … units and stops at what can be asked for.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from mmspec_text.drafters.suffix_statistics import Guess

BREAK = -1
"""Stands between documents; no n-gram goes across."""


class SuffixArray:
    """Answers like `NgramCounts`, for a text that does not change.

    Args:
        ids: Unit ids, or documents of them.
        shortest: Units of the shortest n-gram that may be asked for.
        longest: Units of the longest.

    Raises:
        ValueError: There are no ids, or one is no id.
    """

    def __init__(self, ids: Sequence[int] | Sequence[Sequence[int]], shortest: int, longest: int) -> None:
        self.shortest = shortest
        self.longest = longest
        flat = _flat(ids)
        self.largest = int(flat.max())
        self._ids = np.concatenate([flat, np.full(longest + 1, BREAK, np.int32)])
        self._order = _sorted_places(flat, longest)

    def guess(self, text: Sequence[int]) -> Guess | None:
        """See `Statistics`; among equally frequent continuations, the smallest id."""
        low, high = self.shortest, min(self.longest, len(text))
        best: Guess | None = None
        while low <= high:  # a suffix that is followed has shorter ones that are
            middle = (low + high + 1) // 2
            guess = self._after(text[-middle:])
            if guess is None:
                high = middle - 1
            else:
                best, low = guess, middle + 1
        return best

    def _after(self, gram: Sequence[int]) -> Guess | None:
        first, last = 0, len(self._order)
        for offset, unit in enumerate(gram):
            shown = self._ids[offset:]
            first = bisect_left(self._order, unit, first, last, key=shown.__getitem__)
            last = bisect_right(self._order, unit, first, last, key=shown.__getitem__)
            if first == last:
                return None
        followers = self._ids[self._order[first:last] + len(gram)]
        units, counts = np.unique(followers[followers != BREAK], return_counts=True)
        if not len(units):
            return None
        top = int(counts.argmax())
        return Guess(int(units[top]), int(counts[top]), int(counts.sum()), len(gram))


def read_corpus(source: Any, tokenizer: Any) -> Any:
    """Ids of a corpus as users name it: ids themselves, a file of ids (`.json`, `.safetensors`), or a text file.

    Args:
        source: The corpus.
        tokenizer: Live, or a model's name; for text.

    Raises:
        ValueError: It cannot be read; says why, and what can.
    """
    if not isinstance(source, (str, Path)):
        return source
    path = Path(source)
    if not path.is_file():
        raise ValueError(f"no corpus at {path}; give a UTF-8 text file, or a file of ids (.json, .safetensors)")
    try:
        if path.suffix == ".json":
            return json.loads(path.read_text(encoding="utf-8"))
        if path.suffix == ".safetensors":
            return _only(load_file(path))
        text = path.read_text(encoding="utf-8")
    except Exception as error:
        raise ValueError(f"the corpus {path} cannot be read: {error}") from error
    if tokenizer is None:
        raise ValueError(f"the corpus {path} is text; name the tokenizer that makes ids of it (tokenizer=…)")
    if isinstance(tokenizer, str):
        from mmspec.hosts.loading import load_tokenizer

        tokenizer = load_tokenizer(tokenizer)
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def _only(tensors: dict[str, Any]) -> Any:
    if len(tensors) != 1:
        raise ValueError(f"one tensor of ids is wanted, it has {sorted(tensors)}")
    return next(iter(tensors.values()))


def _flat(ids: Any) -> np.ndarray:
    """One row of int32, documents apart."""
    nested = isinstance(ids, (list, tuple)) and any(isinstance(document, (list, tuple)) for document in ids)
    documents = [np.asarray(document) for document in ids] if nested else [np.asarray(ids)]
    for document in documents:
        if document.ndim != 1 or (len(document) and document.dtype.kind not in "iu"):
            raise ValueError("a corpus is a list of token ids, or a list of such lists")
        if len(document) and not 0 <= int(document.min()) <= int(document.max()) < 2**31:
            raise ValueError(f"token ids are 0 … 2**31 - 1, the corpus has {document.min()} … {document.max()}")
    if not any(len(document) for document in documents):
        raise ValueError("the corpus is empty")
    apart = [piece for document in documents for piece in (document.astype(np.int32), np.array([BREAK], np.int32))]
    return np.concatenate(apart)


def _sorted_places(ids: np.ndarray, longest: int) -> np.ndarray:
    """Places of `ids`, sorted by the first `longest` units that stand there. int32, `[len(ids)]`."""
    rank = np.unique(ids, return_inverse=True)[1].astype(np.int64) + 1  # 0: beyond the end
    order, known = np.argsort(rank, kind="stable"), 1
    while known < longest:
        later = np.zeros_like(rank)
        later[:-known] = rank[known:]
        key = rank * (len(ids) + 2) + later
        order, known = np.argsort(key, kind="stable"), 2 * known
        ranked = key[order]
        rank[order] = np.concatenate([[0], (ranked[1:] != ranked[:-1]).cumsum()]) + 1
    return order.astype(np.int32 if len(ids) < 2**31 else np.int64)
