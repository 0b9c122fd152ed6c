"""Tables of rows: JSON lines and CSV by the standard library, parquet by pyarrow where it is installed."""

import csv
import importlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmspec.registry.printable import shown

SUFFIXES = (".parquet", ".jsonl", ".csv")


@dataclass(frozen=True)
class Table:
    """A table in memory."""

    suffix: str  # `.parquet`, `.jsonl` or `.csv`.
    columns: list[str]  # names of the columns, in order
    rows: list[dict[str, Any]]  # one dict a row; an empty cell is None
    schema: Any = None  # pyarrow's schema of a parquet file; else None


def read_table(path: Path, numbers: Collection[str] = ()) -> Table:
    """Read a table.

    Args:
        path: A file whose suffix is one of `SUFFIXES`.
        numbers: Columns of CSV that hold numbers; all others hold texts.

    Raises:
        ValueError: The file is of another kind, is damaged, or has no rows; the message names the line.
        ImportError: The file is parquet, and pyarrow is not installed.
    """
    readers = {".parquet": _parquet, ".jsonl": _jsonl, ".csv": lambda path: _csv(path, numbers)}
    if path.suffix not in readers:
        raise ValueError(f"a table is a file ending in {', '.join(SUFFIXES)}, not {path.name}")
    if not path.is_file():
        raise ValueError(f"there is no table {path}")
    try:
        table = readers[path.suffix](path)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is no table: {shown(error)}") from error
    if not table.rows:
        raise ValueError(f"{path} has no rows")
    return table


def arrow(module: str = "pyarrow") -> Any:
    """A module of pyarrow.

    Raises:
        ImportError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"parquet needs pyarrow: pip install 'mmspec[ray]' ({error})") from error


def _jsonl(path: Path) -> Table:
    rows: list[dict[str, Any]] = []
    with path.open("rb") as file:  # in bytes: a line that is no UTF-8 is named as any other
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode())
            except (ValueError, RecursionError) as error:
                raise ValueError(f"line {number} of {path} is no JSON: {shown(error)}") from error
            if not isinstance(row, dict):
                raise ValueError(f"line {number} of {path} is no object with columns, but {shown(row, 60)}")
            rows.append(row)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return Table(".jsonl", columns, [{name: row.get(name) for name in columns} for row in rows])


def _csv(path: Path, numbers: Collection[str]) -> Table:
    rows: list[dict[str, Any]] = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, restkey="")
        columns = list(reader.fieldnames or ())
        if len(set(columns)) < len(columns) or "" in columns:
            raise ValueError(f"the first line of {path} names the columns, each once; it is {shown(columns)}")
        for row in reader:
            if "" in row:
                raise ValueError(f"line {reader.line_num} of {path} has more cells than the first line has columns")
            rows.append({name: _cell(row[name], name in numbers, reader.line_num, name) for name in columns})
    return Table(".csv", columns, rows)


def _cell(text: str | None, number: bool, line: int, column: str) -> Any:
    if not text:
        return None
    if not number:
        return text
    try:
        return json.loads(text, parse_constant=float)
    except ValueError:
        raise ValueError(f"line {line}: the column {column!r} holds numbers, not {shown(text, 60)!r}") from None


def _parquet(path: Path) -> Table:
    parquet = arrow("pyarrow.parquet")
    try:
        table = parquet.read_table(path)
    except (ValueError, OSError) as error:  # pyarrow's own errors are these
        raise ValueError(f"{path} is no parquet file: {shown(error)}") from error
    return Table(".parquet", list(table.column_names), table.to_pylist(), table.schema)


def rows_to_bytes(values: Sequence[Any]) -> bytes:
    """Cells as bytes that are equal where the cells are: for a digest of what was computed."""
    return json.dumps(values, default=lambda value: value.hex() if isinstance(value, bytes) else str(value)).encode()
