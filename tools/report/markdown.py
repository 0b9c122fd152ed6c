"""Tables as Markdown.

Text is escaped here, since a benchmark's JSON and the facts beside weights are not trusted.
"""

import html
import re
from collections.abc import Sequence

from mmspec.registry.printable import printable
from mmspec.report import views
from mmspec.report.result import Result
from mmspec.report.table import everything
from mmspec.report.views import View


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


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(escaped, cells)) + " |"


_MARKUP = re.compile(r"[\\`*|\[\]#~]")


def escaped(text: str) -> str:
    r"""A text as one line of Markdown that shows it literally: it begins no tag, comment, link, fence, heading or cell.

    Example:
        >>> escaped("<!-- a | b -->")
        '&lt;!-- a \\| b --&gt;'
    """
    return _MARKUP.sub(r"\\\g<0>", html.escape(printable(text.strip()), quote=False))
