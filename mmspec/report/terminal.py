"""Tables and lines on standard output, by rich: whatever stands in them is shown as it is, never read as markup.

A pipe or a file has no edge to wrap at (unless `COLUMNS` says so): a table has the width that it needs there, and each
of its rows is one line.
"""

import os
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from mmspec.registry.printable import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

EDGELESS = 100_000
"""Columns of what is no terminal: more than any line has."""


def terminal() -> "Console":
    """Standard output."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=EDGELESS)


def table(
    console: "Console",
    columns: Sequence[str],
    rows: Iterable[Sequence["str | Text"]],
    whole: Collection[str] = (),
    boxed: bool = False,
) -> None:
    """Show a table of text.

    Args:
        console: The console to print on.
        columns: Headers.
        rows: A cell for each column. The lines of a cell of several are joined where there is no edge.
        whole: Columns that are to be copied: they are neither cut nor folded.
        boxed: Whether there are lines around the cells.
    """
    from rich.box import HEAVY_HEAD
    from rich.table import Column, Table

    headers = [Column(text(name), no_wrap=name in whole, overflow="fold") for name in columns]
    drawn = Table(*headers, box=HEAVY_HEAD if boxed else None, pad_edge=boxed)
    for row in rows:
        drawn.add_row(*(_cell(cell, console.width == EDGELESS) for cell in row))
    console.print(drawn)


def line(console: "Console", said: str, style: str = "") -> None:
    """Show a text, its lines unbroken."""
    console.print(text(said, style), soft_wrap=True)


def text(said: str, style: str = "") -> "Text":
    """A text whose only control characters are its ends of lines."""
    from rich.text import Text

    return Text("\n".join(map(printable, said.splitlines())), style)


def _cell(cell: "str | Text", joined: bool) -> "Text":
    if not isinstance(cell, str):
        return cell
    return text("; ".join(cell.splitlines()) if joined else cell)
