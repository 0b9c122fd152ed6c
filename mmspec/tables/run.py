"""Compute a table row by row into a folder: what is written is never computed again."""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import mmspec
from mmspec.api.row_values import ids_of, objects, summed
from mmspec.api.rows import OURS, Rows
from mmspec.files import save_text
from mmspec.tables.reading import Folder, Table, rows_to_bytes
from mmspec.training.work import RECIPE, claimed

SUMMARY = "summary.json"

Batch = dict[str, np.ndarray]
Engine = Callable[[Rows, Iterable[Batch]], Iterable[Mapping[str, Any]]]
"""Computes batches, in any order and cut in any way."""


@dataclass(frozen=True)
class Summary:
    rows: int  # rows of the table
    computed: int  # rows that this run computed
    errors: int  # rows without an output, of this run and of earlier ones
    first_error: str  # the first of their errors
    seconds: float  # of this run
    # The sums of all calls' reports, of this run and of earlier ones; see `mmspec.api.row_values.summed`.
    calls: dict[str, Any]


def run(
    rows: Rows,
    table: Table,
    out: Path,
    engine: Engine,
    *,
    batch: int = 8,
    per_file: int = 64,
    resume: bool = False,
    progress: Callable[[int], Any] = lambda count: None,
) -> Summary:
    """Compute all rows of a table that the folder does not have yet.

    A part has `per_file` rows: so many are lost at most where the process is killed. Without `resume` a folder with
    rows in it is refused. `progress` gets the number of rows that are there from earlier runs, then of every batch.
    Refuses doubled ids, and a folder with something else in it.
    """
    reads = rows.reads(table.columns)
    ids = ids_of((row[rows.id] for row in table.rows), rows.id)
    began = time.monotonic()
    with claimed(out, recipe_of(rows, table, reads)):
        folder = Folder(out, table, rows.id)
        there = folder.written()
        if there and not resume:
            raise ValueError(f"{out} has {len(there)} of {len(ids)} rows of this run; continue it with --resume")
        progress(len(there))
        left = {id: row for id, row in zip(ids, table.rows, strict=True) if id not in there}
        results = engine(rows, _batches(dict(left), rows.id, reads, batch)) if left else ()
        try:
            for written in _parts(folder, left, results, per_file):
                progress(written)
        finally:
            if not folder.parts():  # a method that was refused, say: another may have the folder
                (out / RECIPE).unlink()
        summary = _summary(folder, len(ids), len(ids) - len(there), time.monotonic() - began)
        save_text(out / SUMMARY, json.dumps(vars(summary), indent=1) + "\n")
    return summary


def here(rows: Rows, batches: Iterable[Batch]) -> Iterator[Mapping[str, Any]]:
    """The engine of one machine: one batch after the other."""
    return map(rows, batches)


def recipe_of(rows: Rows, table: Table, reads: Sequence[str]) -> dict[str, Any]:
    """All that decides a run's outputs, by name."""
    digest = hashlib.sha256()
    for row in table.rows:
        digest.update(rows_to_bytes([row[name] for name in reads]))
    table_is = f"{len(table.rows)} rows, {digest.hexdigest()[:16]}"
    return {"run": "mmspec run", "version": mmspec.__version__, "table": table_is, **rows.description()}


def _batches(left: Mapping[str, Mapping[str, Any]], id: str, reads: Sequence[str], size: int) -> Iterator[Batch]:
    """Batches of the columns that are read; an id is a text in them."""
    ids = list(left)
    for start in range(0, len(ids), size):
        some = ids[start : start + size]
        columns = {name: objects([left[one][name] for one in some]) for name in reads}
        yield {**columns, id: objects(some)}


def _parts(
    folder: Folder, left: dict[str, dict[str, Any]], results: Iterable[Mapping[str, Any]], per_file: int
) -> Iterator[int]:
    """Write results as they come, each row once, also where the run is stopped; gives the number of rows of every
    result.
    """
    waiting: list[dict[str, Any]] = []
    makes = ""
    try:
        for result in results:
            makes = next(name for name in ("text", "image", "video") if name in result)
            before = len(waiting)
            for number, id in enumerate(result[folder.id]):
                row = left.pop(str(id), None)  # None: a worker was lost after its row had come, which came again
                if row is not None:
                    ours = {name: _plain(result[name][number]) for name in (makes, *OURS)}
                    waiting.append({**row, **ours, "seed": int(ours["seed"])})
            came = len(waiting) - before
            while len(waiting) >= per_file:
                folder.write(waiting[:per_file], makes)
                del waiting[:per_file]
            yield came
    finally:
        if waiting:
            folder.write(waiting, makes)
    if left:
        raise RuntimeError(f"{len(left)} rows did not come back, such as {next(iter(left))!r}; run it with --resume")


def _plain(value: Any) -> Any:
    """A cell of numpy as Python's; an empty one, which engines give as NaN, as None."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) else value


def _summary(folder: Folder, rows: int, computed: int, seconds: float) -> Summary:
    reports, errors = [], []
    for row in folder.rows():
        reports += [row["report"]] if row["report"] else []
        errors += [row["error"]] if row["error"] else []
    return Summary(rows, computed, len(errors), errors[0] if errors else "", seconds, summed(reports))
