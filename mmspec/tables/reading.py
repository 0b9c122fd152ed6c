"""Tables of rows: JSON lines and CSV by the standard library, parquet by pyarrow where it is installed."""

import csv
import importlib
import io
import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from mmspec.api.rows import OURS
from mmspec.files import remove_sides, save_text, save_whole
from mmspec.registry.printable import shown
from mmspec.untrusted import read_json_lines

SUFFIXES = (".parquet", ".jsonl", ".csv")


@dataclass(frozen=True)
class Table:
    suffix: str  # `.parquet`, `.jsonl` or `.csv`.
    columns: list[str]  # names of the columns, in order
    rows: list[dict[str, Any]]  # one dict a row; an empty cell is None
    schema: Any = None  # pyarrow's schema of a parquet file; else None


def read_table(path: Path, numbers: Collection[str] = ()) -> Table:
    """Read a table; columns of CSV hold texts, or numbers where `numbers` names them. Refuses damaged files, by the
    line.
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
    """A module of pyarrow."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"parquet needs pyarrow: pip install 'mmspec[ray]' ({error})") from error


def _jsonl(path: Path) -> Table:
    rows = read_json_lines(path, path.stat().st_size)
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


FILES = "files"
ENDINGS = {"image": ".png", "video": ".gif"}
_SAFE = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class Folder:
    """The output of a run, claimed by this process: parts, each written whole, that a later run continues.

    A part has the table's own format. Pictures and clips stand in parquet as bytes; with JSON lines and CSV they are
    files in `files/`, which the column names.
    """

    def __init__(self, path: Path, table: Table, id: str) -> None:
        self.path, self.table, self.id = path, table, id
        remove_sides(path / FILES)
        self._next = max(map(_number, self.parts()), default=-1) + 1

    def parts(self) -> list[Path]:
        return sorted(self.path.glob("part-*" + self.table.suffix), key=_number)

    def rows(self) -> Iterator[dict[str, Any]]:
        """All rows that were written."""
        for part in self.parts():
            yield from read_table(part).rows

    def written(self) -> set[str]:
        return {str(row[self.id]) for row in self.rows()}

    def write(self, rows: Sequence[dict[str, Any]], makes: str) -> None:
        """Write rows, with the table's columns, `makes` for the output, and those of `mmspec.api.rows.OURS`, as one
        more part.
        """
        part = self.path / f"part-{self._next:06}{self.table.suffix}"
        self._next += 1
        columns = [*self.table.columns, makes, *OURS]
        if self.table.suffix == ".parquet":
            self._write_parquet(part, rows, columns, makes)
            return
        rows = [self._with_file(row, makes) for row in rows]
        if self.table.suffix == ".jsonl":
            save_text(part, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
            return
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows(rows)
        save_whole(part, lambda side: side.write_bytes(text.getvalue().encode()))

    def _with_file(self, row: dict[str, Any], makes: str) -> dict[str, Any]:
        """The row, with its bytes in a file."""
        content = row[makes]
        if not isinstance(content, bytes):
            return row
        (self.path / FILES).mkdir(exist_ok=True)
        name = f"{FILES}/{_file_name(str(row[self.id]))}{ENDINGS[makes]}"
        save_whole(self.path / name, lambda side: side.write_bytes(content))
        return {**row, makes: name}

    def _write_parquet(self, part: Path, rows: Sequence[dict[str, Any]], columns: list[str], makes: str) -> None:
        pyarrow, parquet = arrow(), arrow("pyarrow.parquet")
        # Types are named: a part without any error, or with nothing but errors, has the schema of all others.
        ours = {name: pyarrow.string() for name in OURS} | {"seed": pyarrow.uint64()}
        ours[makes] = pyarrow.string() if makes == "text" else pyarrow.binary()
        inputs = {field.name: field.type for field in self.table.schema}
        schema = pyarrow.schema([(name, inputs.get(name, ours.get(name))) for name in columns])
        table = pyarrow.Table.from_pylist(list(rows), schema=schema)
        save_whole(part, lambda side: parquet.write_table(table, side))


def _number(part: Path) -> int:
    return int(part.stem.removeprefix("part-"))


def _file_name(id: str) -> str:
    """An id as a file's name: itself, where it is short and of small letters and digits; else a digest."""
    return id if _SAFE.fullmatch(id) else "_" + blake2b(id.encode(), digest_size=12).hexdigest()
