"""Artificial drafters, for measuring the loop instead of a drafter.

* `Oracle` drafts the target's own output: an upper bound for this k, this target and this loop.
* `Parrot` repeats the last unit; under the rule `synthetic` its drafts are accepted at a given rate.
* The policy `Fixed(0)` (`mmspec.core.policies`) drafts nothing: with any drafter it measures the cost of empty rounds.
"""

from collections.abc import Mapping


class Oracle:
    """A `HostDrafter` that knows the output of plain decoding.

    Args:
        truth: Prompt and output together, by prompt.
    """

    def __init__(self, truth: Mapping[tuple[int, ...], list[int]]) -> None:
        self._truth = truth

    def propose(self, tokens: list[list[int]], k: int) -> list[list[int]]:
        """The next `k` units of the known output of every row."""
        return [self._next(row, k) for row in tokens]

    def _next(self, row: list[int], k: int) -> list[int]:
        for prompt, whole in self._truth.items():
            if tuple(row[: len(prompt)]) == prompt and whole[: len(row)] == row:
                return whole[len(row) : len(row) + k]
        return []


class Parrot:
    """A `HostDrafter` that repeats the last unit."""

    def propose(self, tokens: list[list[int]], k: int) -> list[list[int]]:
        """The last unit of every row, `k` times."""
        return [row[-1:] * k for row in tokens]
