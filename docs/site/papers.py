"""The later tables of `docs/papers.md`, written by `python docs/site/papers.py`: methods of other papers, and the rows
that `python -m tools.bench papers` measured.
"""

import re
from pathlib import Path

from mmspec.registry import MethodSpec, installed, pair
from tools.bench.papers import Cell
from tools.report import lines

PAGE = Path(__file__).resolve().parents[1] / "papers.md"
OPEN, CLOSE = "<!-- papers: others -->", "<!-- /papers -->"
MEASURED = Path(__file__).resolve().parents[2] / "model_cards" / "papers.jsonl"
NOTE = (
    "`python -m tools.bench papers --row NAME --json model_cards/papers.jsonl` measures a row, whose workload and "
    "methods are in `tools/bench/papers.py`. Seconds are of the CPU, in turns with plain decoding, on a busy machine."
)
_ROW = re.compile(r"^\| \[(?P<title>[^\]]+)\]\((?P<paper>[^)]+)\) \| (?P<ours>.*?) \| (?P<files>.*?) \|", re.MULTILINE)


def rows(text: str) -> list[dict[str, str]]:
    """Title, paper, what is ours and its files, of every row of the page's first table."""
    return [match.groupdict() for match in _ROW.finditer(text.partition(OPEN)[0])]


def filled(text: str) -> str:
    """The page with its later tables: methods whose papers the first one does not have, and measured rows."""
    before, _, rest = text.partition(OPEN)
    known = {row["paper"] for row in rows(text)}
    others = [method for method in installed().components("method") if method.paper and method.paper not in known]
    lines = [
        f"| [`{method.name}`](methods/{method.name}.md) | <{method.paper}> | `{file_of(method)}` |"
        for method in sorted(others, key=lambda method: method.name)
    ]
    table = "\n".join(["| method | paper | file |", "|---|---|---|", *lines])
    sections = OPEN, table, "## Measured rows", NOTE, measured(), CLOSE
    return before + "\n\n".join(sections) + rest.partition(CLOSE)[2]


def measured() -> str:
    """The measured rows, as a table."""
    cells = lines.load_lines(MEASURED, Cell, "tools.bench papers", lambda _: None)
    head = (
        "row",
        "model",
        "method",
        "options",
        "tokens a pass",
        "nodes a pass",
        "CPU seconds, plain / own",
        "same texts",
        "beside",
    )
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *map(_line, cells)])


def _line(cell: Cell) -> str:
    options = " ".join(f"`{name}={value}`" for name, value in cell.options.items() if name != "method")
    speed = f"{cell.plain_cpu_seconds / cell.cpu_seconds:.2f}"
    model = f"{cell.model}, {cell.dtype}"
    figures = f"{cell.acceptance_length:.2f} | {cell.drafted / cell.passes:.1f} | {speed} | {cell.same:.2f}"
    own = " · ".join(f"{name} {value:g}" for name, value in cell.figures.items())
    return f"| {cell.row} | {model} | {cell.method} | {options} | {figures} | {own} |"


def file_of(method: MethodSpec) -> str:
    """The file of a method's drafter, or of its rule where it has none, from the root of the repository."""
    parts = pair(installed(), method)
    module = (parts.drafter or parts.rule).factory.partition(":")[0].replace(".", "/")
    return f"{module}.py" if module.startswith("mmspec/") else f"plugins/{module}.py"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
