"""Tables for the terminal (rich) and for Markdown; their cells come from `views`, and from below: how deep drafts
are accepted, what limits the speed, what the hardware would allow.

Text is escaped for Markdown here, since a benchmark's JSON and the facts beside weights are not trusted.
"""

import html
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmspec.registry.printable import printable
from mmspec.report import terminal, views
from mmspec.report.result import Result
from mmspec.report.views import BELOW, SLOWER, WARNING, View, keys_of, ratio, real, shares

if TYPE_CHECKING:
    from rich.console import Console


DEPTHS = 12  # number of depths that are printed; windows have more


def everything(result: Result) -> list[View]:
    tables = [
        *views.speeds(result),
        views.qualities(result),
        views.costs(result),
        views.batches(result),
        views.forced(result),
        depths(result),
        modes(result),
        *limits(result),
        rounds(result),
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


def modes(result: Result) -> View:
    """Rows whose drafts are artificial (`Row.mode`): they are bounds and overheads, not results."""
    header = ("setting", "method", "drafts", "acceptance length", "speed-up over plain", "draft / verify / rest")
    rows = [
        (r.setting, r.method, r.mode, f"{r.acceptance_length:.2f}", ratio(r.plain_repeats_s, r.repeats_s), shares(r))
        for r in result.rows
        if r.mode != "real"
    ]
    note = "Oracle drafts are the truth, synthetic ones are accepted at a given rate, empty ones are none."
    return View("Bounds and overheads, no claims", header, rows, note)


def limits(result: Result) -> list[View]:
    """The bounds by hardware and drafts, beside what was measured."""
    limits = result.limits
    sizes = sorted(keys_of((limits.v_of_n, limits.F_hw)), key=int)
    passes = [(n, _number(limits.v_of_n, n), _number(limits.F_hw, n)) for n in sizes]
    parts = (limits.F_pipe, limits.F_tree, limits.F_total)
    reached = [(key, *(_number(part, key) for part in parts)) for key in keys_of(parts)]
    return [
        View(
            "Target passes over N nodes",
            ("N", "v(N)", "F_hw"),
            passes,
            "v(N): seconds / those of one node. F_hw: floor / seconds.",
        ),
        View(
            "Cost of a draft model's pass", ("draft model", "c"), [(name, f"{c:.3f}") for name, c in limits.c.items()]
        ),
        View(
            "What was reached of what is possible",
            ("setting / method", "F_pipe", "F_tree", "F_total"),
            reached,
            "F_pipe: drafts and bare eager passes, of what the rounds took; compiled rounds may take less. "
            "F_tree: of the best tree of as many nodes. F_total: of a perfect pass with free drafts.",
        ),
        View("Measured", ("what", "value"), [(name, f"{value:.4g}") for name, value in limits.measured.items()]),
    ]


def rounds(result: Result) -> View:
    """Measured and possible costs of rounds over N nodes."""
    columns = result.limits.by_nodes
    sizes = sorted(keys_of(columns.values()), key=int)
    rows = [(n, *(f"{by[n]:.3g}" if n in by else "" for by in columns.values())) for n in sizes]
    return View("Rounds over N nodes", ("N", *columns), rows)


def _number(mapping: dict[str, float], key: str) -> str:
    return f"{mapping[key]:.2f}" if key in mapping else ""
