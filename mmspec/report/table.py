"""Tables for the terminal (rich); their cells come from `views`, and from below: how deep drafts are accepted."""

from functools import singledispatch
from typing import TYPE_CHECKING

from mmspec.report import terminal, views
from mmspec.report.result import Result
from mmspec.report.views import BELOW, SLOWER, WARNING, View, real

if TYPE_CHECKING:
    from rich.console import Console


DEPTHS = 12  # number of depths that are printed; windows have more


@singledispatch
def everything(result: Result) -> list[View]:
    """The tables of a result; another kind of result may register tables of its own."""
    tables = [*views.speeds(result), views.costs(result), views.batches(result), depths(result)]
    return [table for table in tables if table.rows]


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


def _style(cell: str) -> str:
    return "bold red" if cell.startswith(WARNING) else "red" if cell.endswith((SLOWER, BELOW)) else ""


def depths(result: Result) -> View:
    """Share of rounds that accept a node of each depth."""
    rows = [
        (row.setting, row.method, " · ".join(f"{share:.2f}" for share in row.acceptance_by_depth[:DEPTHS]))
        for setting in result.settings
        for row in real(result, setting)
        if row.acceptance_by_depth
    ]
    longest = max((len(row.acceptance_by_depth) for row in result.rows if row.mode == "real"), default=0)
    note = f"The first {DEPTHS} of up to {longest} depths." if longest > DEPTHS else ""
    return View("Share of rounds that reach depth 1, 2, …", ("setting", "method", "share"), rows, note)
