"""Seconds of rounds by rows and nodes, measured before a call.

A table has a line of JSON a round: `{"section": "round", "shape": "mine", "rows": 1, "nodes": 8, "ms": 21.5}`,
`shape` being any name for the model. `python -m tools.bench core`, in a clone, writes it for models of published sizes.

Only ratios of the table are used: the context of a call, its model's dtype and the machine's load change all rounds by
about one factor, which a policy finds out from the first rounds that it times.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmspec.registry.printable import shown
from mmspec.untrusted import read_json_lines

SECTION = "round"
"""The lines of the file that are read."""


@dataclass(frozen=True)
class StepCosts:
    """The table."""

    seconds: Mapping[tuple[int, int], float]  # seconds of a round by number of rows and of nodes, the root included

    def __post_init__(self) -> None:
        for (rows, nodes), seconds in self.seconds.items():
            if rows < 1 or nodes < 1 or not 0 < seconds < math.inf:
                raise ValueError(f"rows, nodes and seconds are positive, got {rows}, {nodes} and {seconds}")
        plain = {rows for rows, nodes in self.seconds if nodes == 1}
        missing = sorted({rows for rows, _ in self.seconds} - plain)
        if missing or not plain:
            raise ValueError(f"rounds of 1 node are missing for {missing or 'any'} rows: drafts are compared with them")

    @classmethod
    def read(cls, path: Path) -> "StepCosts":
        """The rounds in a file; where a size was measured in several ways, the fastest one."""
        lines = [line for line in read_json_lines(path) if line.get("section") == SECTION and "ms" in line]
        shapes = sorted({str(line.get("shape")) for line in lines})
        if len(shapes) > 1:
            raise ValueError(f"{shown(path)} has rounds of {shown(', '.join(shapes))}; a table has those of one model")
        try:
            return cls(_fastest(lines))
        except ValueError as error:
            raise ValueError(f"{shown(path)} is no table of costs: {shown(error)}") from None

    def __call__(self, rows: int, nodes: int) -> float:
        """Seconds of a round, interpolated linearly between measured numbers of nodes, then of rows."""
        return on_line([(known, on_line(self._of(known), nodes)) for known in self._rows], rows)

    @property
    def _rows(self) -> list[int]:
        return sorted({rows for rows, _ in self.seconds})

    def _of(self, rows: int) -> list[tuple[int, float]]:
        """Seconds by nodes for a measured number of rows."""
        return sorted((nodes, seconds) for (r, nodes), seconds in self.seconds.items() if r == rows)


def on_line(known: Sequence[tuple[int, float]], at: int) -> float:
    """Seconds at a size: on the line through its two measured neighbours, or through the last two behind them.

    The known sizes, at least one, are in ascending order; before the first one, its seconds hold.
    """
    place = bisect_left(known, (at, 0.0))
    if len(known) == 1 or place == 0:
        return known[0][1]
    place = min(place, len(known) - 1)
    (low, below), (high, above) = known[place - 1], known[place]
    line = below + (above - below) * (at - low) / (high - low)
    return max(line, min(below, above))  # noisy measurements may extrapolate to a negative time


def _fastest(lines: Iterable[Mapping[str, Any]]) -> dict[tuple[int, int], float]:
    seconds: dict[tuple[int, int], float] = {}
    for line in lines:
        rows, nodes, ms = line.get("rows"), line.get("nodes"), line["ms"]
        if type(rows) is not int or type(nodes) is not int or type(ms) not in (int, float):
            raise ValueError(f"a round has numbers of rows, nodes and milliseconds, not {rows!r}, {nodes!r} and {ms!r}")
        seconds[rows, nodes] = min(ms / 1e3, seconds.get((rows, nodes), math.inf))
    return seconds
