"""Measured diversity: how varied the outputs of a method are, beside how much plain decoding's vary with the seed.

A figure is computed from all outputs of a prompt, and averaged over prompts, once for every set of seeds. How much
the values of two methods differ from set to set says how far apart their means are by chance: an exact method's is no
further from plain decoding's.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, FiniteFloat

from mmspec.report.result import PLAIN, Amount, Count
from mmspec.report.views import View
from tools.report.lines import load_lines

SUFFIX = ".diversity.jsonl"
"""How the name of such a document beside a card ends."""
APART = 4
"""Standard errors behind which a mean is outside of plain decoding's spread: with 8 sets, 1 in 700 is so by chance."""


@dataclass(frozen=True)
class Diversity:
    """One method on one kind of prompts."""

    model: str  # name of the target
    method: str
    exactness: str  # the promise of its rule
    kind: str  # the kind of prompts
    temperature: Amount  # of sampling
    prompts: Count
    outputs: Count  # outputs of each prompt under one set of seeds
    units: Count  # units of an output
    figures: dict[str, list[FiniteFloat]] = field(default_factory=dict)  # by name, one value for every set of seeds
    # Share of all outputs that equal plain decoding's with the same seed
    same: Annotated[float, Field(ge=0, le=1)] = 0.0
    acceptance_length: Amount = 0.0  # emitted units per row and pass after prefill
    bias: Amount | None = None  # mean total variation of an emitted unit, of lossy rules that measure it; else None
    options: dict[str, Any] = field(default_factory=dict)  # options of the method
    device: str = ""  # the processor and its threads, or the GPU, in words
    versions: dict[str, str] = field(default_factory=dict)  # versions of mmspec, torch, transformers and Python


def load(path: Path) -> list[Diversity]:
    """Read and validate a document that `mmspec.report.lines.save_lines` wrote.

    Raises:
        ValueError: The file is not such a document; names the line.
    """
    cells = load_lines(path, Diversity, "python -m tools.bench diversity", _refuse)
    for cell in cells:
        if all((other.method, other.kind) != (PLAIN, cell.kind) for other in cells):
            raise ValueError(f"{path} has no plain decoding of {cell.kind} to compare {cell.method} with")
    return cells


def _refuse(cell: Diversity) -> None:
    if not cell.figures or len({len(values) for values in cell.figures.values()}) != 1:
        raise ValueError("every figure has one value for every set of seeds")
    if min(map(len, cell.figures.values())) < 2:
        raise ValueError("one set of seeds has no spread")


def outside(cell: Diversity, plain: Diversity) -> list[str]:
    """The figures whose mean differs from plain decoding's by more than `APART` standard errors of the difference."""
    found = []
    for name, values in cell.figures.items():
        theirs = plain.figures[name]
        error = math.sqrt(statistics.variance(values) / len(values) + statistics.variance(theirs) / len(theirs))
        if abs(statistics.fmean(values) - statistics.fmean(theirs)) > APART * error:
            found.append(name)
    return found


def view(cells: Sequence[Diversity]) -> View:
    """A table: kinds of prompts by methods; mean and standard deviation of every figure over the sets of seeds."""
    plain = {cell.kind: cell for cell in cells if cell.method == PLAIN}
    names = list(cells[0].figures)
    rows = []
    for cell in cells:
        apart = outside(cell, plain[cell.kind])
        rows.append(
            (
                cell.kind,
                cell.method,
                cell.exactness if cell.bias is None else f"{cell.exactness}, bias {cell.bias:.3f}",
                f"{cell.acceptance_length:.2f}",
                f"{cell.same:.0%}",
                *(_spread(cell.figures[name]) for name in names),
                "inside" if not apart else f"outside: {', '.join(map(_words, apart))}",
            )
        )
    header = (
        "prompts",
        "method",
        "exactness",
        "acceptance length",
        "same texts",
        *map(_words, names),
        "plain's spread",
    )
    return View("Diversity of sampled texts", header, rows, note(cells))


def note(cells: Sequence[Diversity]) -> str:
    first = cells[0]
    versions = ", ".join(f"{name} {version}" for name, version in first.versions.items())
    sets = len(next(iter(first.figures.values())))
    return (
        f"{first.model} on {first.device}; {versions}; T = {first.temperature:g}; {sets} sets of seeds, "
        f"{first.outputs} texts of {first.units} tokens a prompt in each. Mean ± standard deviation over the sets. "
        f"Outside: the means differ by more than {APART} standard errors. Bias: mean total variation of a token."
    )


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.3f} ± {statistics.stdev(values):.3f}"


def _words(name: str) -> str:
    return name.replace("_", "-")
