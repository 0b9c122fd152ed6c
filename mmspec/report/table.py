"""Tables for the terminal (rich) and for Markdown; their cells come from `views` and `bounds`.

Text is escaped for Markdown here, since a benchmark's JSON and the facts beside weights are not trusted.
"""

import html
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmspec.registry.printable import printable
from mmspec.report import bounds, terminal, views
from mmspec.report.result import Result
from mmspec.report.views import BELOW, SLOWER, WARNING, View

if TYPE_CHECKING:
    from rich.console import Console


def everything(result: Result) -> list[View]:
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
    """Tables with their titles and notes, as Markdown.

    `facts` is a paragraph above them: where and how it was measured.
    """
    parts = [escaped(facts)]
    for table in tables:
        lines = [_line(table.header), "|" + "---|" * len(table.header), *(_line(row) for row in table.rows)]
        parts += [f"**{escaped(table.title)}**" if table.title else "", "\n".join(lines), escaped(table.note)]
    return "\n\n".join(part for part in parts if part)


def show(result: Result, console: "Console | None" = None) -> None:
    """All tables of a benchmark, on the terminal."""
    console = console if console is not None else terminal.terminal()
    terminal.line(console, views.facts(result))
    for table in everything(result):
        terminal.line(console, "")
        show_view(table, console)


def show_view(table: View, console: "Console") -> None:
    """One table with its title and note, on the terminal."""
    terminal.line(console, table.title, "bold")
    terminal.table(console, table.header, ([terminal.text(cell, _style(cell)) for cell in row] for row in table.rows))
    if table.note:
        terminal.line(console, table.note, "dim")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(escaped, cells)) + " |"


def _style(cell: str) -> str:
    return "bold red" if cell.startswith(WARNING) else "red" if cell.endswith((SLOWER, BELOW)) else ""


_MARKUP = re.compile(r"[\\`*|\[\]#~]")


def escaped(text: str) -> str:
    r"""A text as one line of Markdown that shows it literally: it begins no tag, comment, link, fence, heading or cell.

    Example:
        >>> escaped("<!-- a | b -->")
        '&lt;!-- a \\| b --&gt;'
    """
    return _MARKUP.sub(r"\\\g<0>", html.escape(printable(text.strip()), quote=False))
