"""`suffix` for callers that show whole texts: the counts of a text are kept, and go on when it has grown."""

from typing import Protocol

from mmspec_text.drafters.suffix_statistics import SuffixRow

KEPT = 256
"""Texts whose counts are kept, the latest ones."""


class Continues(Protocol):
    """Continues texts: `Suffix`."""

    def row(self) -> SuffixRow:
        """A row without text."""
        ...

    def continued(self, row: SuffixRow, k: int) -> list[tuple[int, float]]:
        """Up to `k` units behind a row's text, each with the log probability of the path up to it."""
        ...


class SuffixOfTexts:
    """A `HostDrafter`."""

    def __init__(self, suffix: Continues) -> None:
        self._suffix, self._rows = suffix, list[SuffixRow]()

    def propose(self, tokens: list[list[int]], k: int) -> list[list[int]]:
        rows = [self._grown(text) for text in tokens]
        self._rows = [*rows, *self._rows][:KEPT]
        return [[unit for unit, _ in self._suffix.continued(row, k)] for row in rows]

    def _grown(self, text: list[int]) -> SuffixRow:
        """The row of a text: the longest one that it continues, taken from those that are kept; or a new one."""
        begun = [row for row in self._rows if row.text == text[: len(row.text)]]
        row = max(begun, key=lambda row: len(row.text), default=None)
        if row is None:
            row = self._suffix.row()
        else:
            self._rows = [other for other in self._rows if other is not row]
        new = text[len(row.text) :]
        row.counts.extend(row.text, new)
        row.text += new
        return row
