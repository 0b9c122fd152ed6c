"""Step compression of the units that show something: blank background is easy to guess, and there is much of it.

A cell is background where all of its pixels, in the decoded picture, are blank: emoji stand on white. Every pass is
charged to the one unit that it drew itself: the last one that it emitted, at which its accepted drafts end (all others
of that pass were drafts). So the charges add up to the passes, plain decoding has a compression of 1 whatever the
units show, and a unit costs a pass exactly where guessing failed.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from einops import rearrange
from torch import Tensor

BLANK = 0.9
"""Pixels in [-1, 1] that are at least as bright, in all channels, are blank: a tokenizer's white is not quite 1."""


def foreground(pictures: Tensor, grid: int) -> Tensor:
    """Cells that show something: `[n, cells]` bool of pictures `[n, channel, height, width]` in [-1, 1]."""
    cells = rearrange(pictures, "n c (row y) (column x) -> n (row column) (c y x)", row=grid, column=grid)
    return (cells < BLANK).any(-1)


def charged(after: Sequence[int]) -> list[int]:
    """Places of the units that the passes of one row drew themselves.

    Args:
        after: How many units it had after prefill, after the first pass, ….
    """
    return [now - 1 for before, now in pairwise(after) if now > before]


def compression(rows: Iterable[tuple[Sequence[int], Tensor]]) -> float | None:
    """Units that count / passes charged to them; what prefill emitted is left out. None where none were charged.

    Args:
        rows: Of each row `after`, as in `charged`, and `[cells]` bool: the units that count.
    """
    units = passes = 0
    for after, counts in rows:
        units += int(counts[after[0] :].sum())
        passes += int(counts[charged(after)].sum())
    return units / passes if passes else None
