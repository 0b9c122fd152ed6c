"""What stands in for a drafter where a benchmark asks about the loop, not about drafts.

* `Oracle`: drafts are the truth: the most that this k, this target and this loop can give.
* `Parrot`: repeats the last unit; under the rule `synthetic` its drafts are accepted at a given rate.
* `Fixed(0)` as policy (`mmspec.core.policies`): a drafter is there and nothing is drafted: what rounds cost by itself.
"""

from collections.abc import Mapping


class Oracle:
    """A `HostDrafter` that was told what plain decoding wrote.

    Args:
        truth: By prompt: prompt and output together.
    """

    def __init__(self, truth: Mapping[tuple[int, ...], list[int]]) -> None:
        self._truth = truth

    def propose(self, tokens: list[list[int]], k: int) -> list[list[int]]:
        """What comes next in the known text of every row."""
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
