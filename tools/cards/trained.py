"""Measured trainings: what a drafter's training changes, row by row, from the same beginning and with as many steps."""

from collections.abc import Sequence
from dataclasses import dataclass, field
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


def view(rows: Sequence[TrainedRow], title: str, note: str) -> View:
    """A table of some rows."""
    names = list(dict.fromkeys(name for row in rows for name in row.figures))
    lines = [
        (row.name, *(f"{row.figures[name]:.4g}" if name in row.figures else "" for name in names), row.command)
        for row in rows
    ]
    return View(title, ("drafter", *names, "`mmspec train drafter`"), lines, note)
