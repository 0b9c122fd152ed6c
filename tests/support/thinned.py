"""The mark `thinned`: of a test's products of settings, the fast tier takes those that have every pair; the slow, all.

Two settings that only together go wrong are a common fault; three are a rare one. `thinned(1)` takes every value once,
where the axes have little to do with each other, or where other tests have their pairs.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import combinations

import pytest

At = tuple[tuple[str, int], ...]
"""The values of an item, by the names of its axes: the same object is the same value."""


def mark_slow(items: Iterable[pytest.Item]) -> None:
    """Mark what the fast tier does not need."""
    tests: dict[tuple[object, str, int], dict[At, list[pytest.Item]]] = {}
    for item in items:
        mark = item.get_closest_marker("thinned")
        if mark is None or item.get_closest_marker("slow") or not isinstance(item, pytest.Function):
            continue
        (strength,) = mark.args or (2,)
        products = tests.setdefault((item.parent, item.originalname, strength), {})
        at = tuple(sorted((name, id(value)) for name, value in item.callspec.params.items()))
        products.setdefault(at, []).append(item)
    for (_, _, strength), products in tests.items():
        for at in products.keys() - set(chosen(list(products), strength)):
            for item in products[at]:
                item.add_marker(pytest.mark.slow)


def chosen(products: list[At], strength: int) -> Iterator[At]:
    """Products that have all combinations of so many values, by greed.

    The next one has most that none before it has; of several such, the one whose values were used least.
    """
    having = {at: set(combinations(at, min(strength, len(at)))) for at in products}
    left, used = set().union(*having.values()), Counter[tuple[str, int]]()
    while left:
        best = max(products, key=lambda at: (len(having[at] & left), -sum(used[value] for value in at)))
        left -= having[best]
        used.update(best)
        yield best
