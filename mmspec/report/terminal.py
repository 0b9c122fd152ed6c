"""Tables and lines on standard output, by rich; their text is shown literally, never read as markup.

In a pipe or a file a table is as wide as it needs to be, and each of its rows is one line, unless `COLUMNS` is set.
"""

import os
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from mmspec.registry.printable import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

EDGELESS = 100_000  # width of an output that is no terminal: more than any line has


def terminal() -> "Console":
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
    """Show a table of text, with lines around the cells if `boxed`. Lines of a cell are joined with "; " in a pipe or a
    file; columns in `whole` are neither cut nor folded, so that they can be copied.
    """
    from rich.box import HEAVY_HEAD
    from rich.table import Column, Table

    headers = [Column(text(name), no_wrap=name in whole, overflow="fold") for name in columns]
    drawn = Table(*headers, box=HEAVY_HEAD if boxed else None, pad_edge=boxed)
    for row in rows:
        drawn.add_row(*(_cell(cell, console.width == EDGELESS) for cell in row))
    console.print(drawn)


def line(console: "Console", content: str, style: str = "") -> None:
    """Print a text without wrapping its lines."""
    console.print(text(content, style), soft_wrap=True)


def text(content: str, style: str = "") -> "Text":
    """A rich text in which line breaks are the only control characters."""
    from rich.text import Text

    return Text("\n".join(map(printable, content.splitlines())), style)


def _cell(cell: "str | Text", joined: bool) -> "Text":
    if not isinstance(cell, str):
        return cell
    return text("; ".join(cell.splitlines()) if joined else cell)
