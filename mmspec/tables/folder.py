"""The output folder of a run: parts of the table, each written whole, that a later run of the same table continues.

A part has the table's own format. Pictures and clips stand in parquet as bytes; with JSON lines and CSV they are files
in `files/`, which the column names.
"""

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from mmspec.api.rows import OURS
from mmspec.files import remove_sides, save_text, save_whole
from mmspec.tables.reading import Table, arrow, read_table

FILES = "files"
ENDINGS = {"image": ".png", "video": ".gif"}
_SAFE = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class Folder:
    """Parts of one table.

    Args:
        path: The folder; claimed by this process.
        table: The table whose rows are computed.
        id: Its column of ids.
    """

    def __init__(self, path: Path, table: Table, id: str) -> None:
        self.path, self.table, self.id = path, table, id
        remove_sides(path / FILES)
        self._next = max(map(_number, self.parts()), default=-1) + 1

    def parts(self) -> list[Path]:
        """The parts, in the order in which they were written."""
        return sorted(self.path.glob("part-*" + self.table.suffix), key=_number)

    def rows(self) -> Iterator[dict[str, Any]]:
        """All rows that were written.

        Raises:
            ValueError: A part is damaged; names it.
        """
        for part in self.parts():
            yield from read_table(part).rows

    def written(self) -> set[str]:
        """The ids of all rows that were written."""
        return {str(row[self.id]) for row in self.rows()}

    def write(self, rows: Sequence[dict[str, Any]], makes: str) -> None:
        """Write rows as one more part.

        Args:
            rows: The table's columns, the column `makes`, and those of `mmspec.api.rows.OURS`.
            makes: What a row's output is.
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
