"""Documents of small measurements, a cell a line, validated as `mmspec.report.trust` validates results."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from mmspec.files import save_text
from mmspec.report.trust import problem, refuse_controls

Cell = TypeVar("Cell")


def save_lines(path: Path, cells: Sequence[Any]) -> None:
    """Write dataclasses, a line each; the file is written whole or not at all."""
    save_text(path, "".join(json.dumps(asdict(cell), ensure_ascii=False) + "\n" for cell in cells))


def load_lines(path: Path, kind: type[Cell], command: str, refuse: Callable[[Cell], None]) -> list[Cell]:
    """Read and validate a document.

    Messages name the command that writes such documents; `refuse` raises a ValueError for a cell that contradicts
    itself. Refuses control characters, by the line.
    """
    reader, cells = TypeAdapter(kind), list[Cell]()
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            cells.append(reader.validate_json(line))
            refuse_controls(vars(cells[-1]))
            refuse(cells[-1])
        except ValidationError as error:
            raise ValueError(
                f"{path}, line {number}, is no cell of `{command}`: {problem(error, 'the cell')}"
            ) from None
        except ValueError as error:
            raise ValueError(f"{path}, line {number}, is no cell of `{command}`: {error}") from None
    if not cells:
        raise ValueError(f"{path} has no cells of `{command}`")
    return cells
