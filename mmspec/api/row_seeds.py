"""Ids of a table's rows, and the seed that each id gives: a row is the same wherever and whenever it is computed."""

import math
from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from numbers import Integral
from typing import Any


def seed_of(seed: int, id: str) -> int:
    """A row's own seed: the first 8 bytes of blake2b of `"{seed}/{id}"`, as a big-endian integer."""
    return int.from_bytes(blake2b(f"{seed}/{id}".encode()).digest()[:8], "big")


def is_missing(value: Any) -> bool:
    """Whether a cell of a table is empty: None, or the NaN that columns of numbers have instead."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def ids_of(values: Iterable[Any], column: str) -> list[str]:
    """The ids of rows as texts.

    Args:
        values: The ids: texts or integers.
        column: The name of their column, for messages.

    Raises:
        ValueError: An id is missing, is neither a text nor an integer, or stands twice; names the row.
    """
    values = list(values)
    for number, value in enumerate(values):
        if is_missing(value) or value == "":
            raise ValueError(f"row {number} has no id in the column {column!r}; a row's seed is made of its id")
        if isinstance(value, bool) or not isinstance(value, str | Integral):
            raise ValueError(f"row {number} has the id {value!r}; an id is a text or an integer")
    ids = [str(value) for value in values]
    id, times = Counter(ids).most_common(1)[0] if ids else ("", 0)
    if times > 1:
        raise ValueError(f"the id {id!r} stands {times} times in the column {column!r}; ids name one row each")
    return ids
