"""A table of text cells, for the terminal (rich) and for Markdown; what stands in it, `views` and `bounds` say."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmspec.report import bounds, views
from mmspec.report.escape import escaped
from mmspec.report.result import Result
from mmspec.report.views import BELOW, SLOWER, WARNING, View

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

WIDE = 180
"""Columns of a table that is not shown on a terminal."""


def everything(result: Result) -> list[View]:
    """All tables that have rows."""
    tables = [
        *views.speeds(result),
        views.qualities(result),
        views.costs(result),
        views.batches(result),
        views.forced(result),
        bounds.depths(result),
        bounds.modes(result),
        *bounds.limits(result),
        bounds.rounds(result),
    ]
    return [table for table in tables if table.rows]


def markdown(result: Result) -> str:
    """All tables of a benchmark, as Markdown without headings, so that it can stand under any."""
    return in_markdown(everything(result), views.facts(result))


def in_markdown(tables: Sequence[View], facts: str = "") -> str:
    """Some tables, with their titles and notes.

    Args:
        tables: What to show.
        facts: What stands above them: where and how it was measured.
    """
    parts = [escaped(facts)]
    for table in tables:
        lines = [_line(table.header), "|" + "---|" * len(table.header), *(_line(row) for row in table.rows)]
        parts += [f"**{escaped(table.title)}**" if table.title else "", "\n".join(lines), escaped(table.note)]
    return "\n\n".join(part for part in parts if part)


def show(result: Result, console: "Console | None" = None) -> None:
    """All tables of a benchmark, on the terminal."""
    console = console if console is not None else wide_console()
    console.print(views.facts(result), markup=False, highlight=False)
    for table in everything(result):
        console.print(f"\n{table.title}", style="bold", markup=False, highlight=False)
        console.print(_rich(table))
        if table.note:
            console.print(table.note, style="dim", markup=False, highlight=False)


def wide_console() -> "Console":
    """The terminal; a file or a pipe has no edge to wrap at (unless `COLUMNS` says so): nothing is folded there."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=WIDE)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(escaped, cells)) + " |"


def _rich(table: View) -> "RichTable":
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False)
    for cell in table.header:
        drawn.add_column(Text(cell), overflow="fold")  # a number is never cut off
    for row in table.rows:
        drawn.add_row(*(Text(cell, style=_style(cell)) for cell in row))
    return drawn


def _style(cell: str) -> str:
    return "bold red" if cell.startswith(WARNING) else "red" if cell.endswith((SLOWER, BELOW)) else ""
