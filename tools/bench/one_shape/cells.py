"""The promise of one shape, measured: a method's outputs against plain decoding's of the same width, rows and seeds.

Cells run one after the other, and every finished cell is in the file before the next one begins: a benchmark that was
stopped goes on where it was. Plain decoding runs once per dtype, setting, batch and width. Nothing is timed.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from mmspec.bench.timing import describe, versions
from mmspec.core.decoder import Decoder
from mmspec.core.report import Report
from mmspec.report.result import PLAIN
from tools.cards.equality import Equality, load
from tools.report.lines import save_lines

Shape = Literal["one", "any"]


@dataclass(frozen=True)
class Cell:
    """What is compared at once."""

    name: str  # what the method and its options are called in the result
    dtype: str  # of the weights
    shape: Shape  # `one`, or `any` for comparison
    setting: str  # name of how units are drawn; the subject knows it
    batch: int  # rows decoded together
    outputs: int  # outputs to compare, a multiple of `batch`
    options: Mapping[str, Any] = field(default_factory=dict)  # the method, if `name` is not its name, and its options


class Subject(Protocol):
    """A model, and how outputs are made with it."""

    @property
    def model(self) -> str:
        """Its name."""

    @property
    def piece(self) -> str:
        """Word for one output."""

    @property
    def device(self) -> str:
        """Where it runs."""

    def decoder(self, dtype: str, method: str, shape: Any, **options: Any) -> Decoder:
        """A new decoder over the model in a dtype."""

    def outputs(self, decoder: Decoder, cell: Cell) -> Iterable[tuple[Sequence[Tensor], Report]]:
        """The outputs of a cell, call by call: a call's units by row, and its report.

        Args:
            decoder: The decoder of the cell's method, or of plain decoding.
            cell: Says what is decoded, and how.
        """


@torch.no_grad()
def measure(
    subject: Subject, cells: Sequence[Cell], file: Path | None, tick: Callable[[], None] = lambda: None
) -> list[Equality]:
    """Run all cells that the file does not have.

    Args:
        subject: The model.
        cells: The cells.
        file: Where the result is kept, a line a cell; None: nowhere.
        tick: Called after every cell, those of the file too.

    Returns:
        The result of every cell.

    Raises:
        ValueError: The file is no such document, or a method does not fit the model.
    """
    kept = load(file) if file is not None and file.is_file() else []
    known = {_place(e.model, e.method, e.dtype, e.shape, e.setting, e.batch, e.outputs, e.options): e for e in kept}
    plain: dict[Any, list[Tensor]] = {}
    found: list[Equality] = []
    for cell in cells:
        wanted = _place(subject.model, *vars(cell).values())
        if wanted not in known:
            known[wanted] = _measured(subject, cell, plain)
            kept.append(known[wanted])
            if file is not None:
                save_lines(file, kept)
        found.append(known[wanted])
        tick()
    return found


def _measured(subject: Subject, cell: Cell, plain: dict[Any, list[Tensor]]) -> Equality:
    decoder = subject.decoder(cell.dtype, shape=cell.shape, **{"method": cell.name, **cell.options})
    width = decoder.one_width()
    ours, reports = _run(subject, decoder, cell)
    assert width is None or all(set(report.sizes) <= {width} for report in reports), "a pass of another width"
    group = cell.dtype, cell.setting, cell.batch, cell.outputs, width
    if group not in plain:
        shape = "any" if width is None else width
        plain[group], _ = _run(subject, subject.decoder(cell.dtype, method=PLAIN, shape=shape), cell)
    apart = [(n, at) for n, (a, b) in enumerate(zip(ours, plain[group], strict=True)) if (at := _first(a, b)) >= 0]
    rounds = sum(report.row_rounds for report in reports)
    return Equality(
        model=subject.model,
        method=cell.name,
        dtype=cell.dtype,
        shape=cell.shape,
        width=width,
        setting=cell.setting,
        batch=cell.batch,
        outputs=len(ours),
        equal=len(ours) - len(apart),
        units=sum(len(units) for units in ours),
        acceptance_length=sum(r.emitted - r.rows for r in reports) / rounds if rounds else 0.0,
        apart=apart,
        options=dict(cell.options),
        piece=subject.piece,
        device=describe(subject.device),
        versions=versions(),
    )


def _run(subject: Subject, decoder: Decoder, cell: Cell) -> tuple[list[Tensor], list[Report]]:
    calls = list(subject.outputs(decoder, cell))
    return [units.cpu() for rows, _ in calls for units in rows], [report for _, report in calls]


def _first(ours: Tensor, plain: Tensor) -> int:
    """The first unit that differs, where one output has no more units than the other: its end; -1: they are equal."""
    shared = min(len(ours), len(plain))
    different = (ours[:shared] != plain[:shared]).nonzero()
    if len(different):
        return int(different[0, 0])
    return -1 if len(ours) == len(plain) else shared


def _place(*facts: Any) -> str:
    """What says that a cell of a file is the wanted one: everything but the machine and what was found."""
    return json.dumps([dict(sorted(fact.items())) if isinstance(fact, Mapping) else fact for fact in facts])
