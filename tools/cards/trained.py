"""Measured trainings: what a drafter's training changes, row by row, from the same beginning and with as many steps."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import FiniteFloat

from mmspec.report.views import View
from tools.report.lines import load_lines

SUFFIX = ".trained.jsonl"
"""How the name of such a document beside a card ends."""


@dataclass(frozen=True)
class TrainedRow:
    """One drafter, trained or not, and what was counted with it."""

    table: str  # the name of its table
    name: str  # what it learnt
    command: str  # the options of `mmspec train drafter` that made it; "" if it was there
    figures: dict[str, FiniteFloat] = field(default_factory=dict)  # by name; rows of a table have the same ones
    device: str = ""  # the processor and its threads, in words
    versions: dict[str, str] = field(default_factory=dict)  # versions of mmspec, torch, transformers and Python


def load(path: Path) -> list[TrainedRow]:
    """Read and validate a document that `python -m tools.bench trained` wrote.

    Raises:
        ValueError: The file is not such a document; names the line.
    """
    return load_lines(path, TrainedRow, "python -m tools.bench trained", _refuse)


def _refuse(row: TrainedRow) -> None:
    if not row.figures:
        raise ValueError("a row has figures")


def views(rows: Sequence[TrainedRow]) -> list[View]:
    """The tables of some rows, in their order; under the last one how they were measured."""
    tables = {table: [row for row in rows if row.table == table] for table in dict.fromkeys(row.table for row in rows)}
    found = [view(name, held) for name, held in tables.items()]
    return [*found[:-1], replace(found[-1], note=note(rows[0]))]


def view(table: str, rows: Sequence[TrainedRow]) -> View:
    """A table of some rows; a figure that a row does not have is left out."""
    names = list(dict.fromkeys(name for row in rows for name in row.figures))
    cells = [[f"{row.figures[name]:.4g}" if name in row.figures else "" for name in names] for row in rows]
    made = any(row.command for row in rows)
    lines = [(row.name, *line, *([row.command] if made else [])) for row, line in zip(rows, cells, strict=True)]
    return View(table, ("drafter", *names, *(["mmspec train drafter"] if made else [])), lines)


def note(row: TrainedRow) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in row.versions.items())
    return (
        f"python -m tools.bench trained, on {row.device}; {versions}. α: the share of sampled drafts of one unit that "
        "an exact rule takes, on held-out text. Length: emitted units per pass of greedy calls, if not said otherwise, "
        "on 10 held-out prompts of 64 tokens with 64 new ones. Rows of a table read the same texts in as many steps."
    )
