"""Documents that have a line of JSON for every cell of a measurement. Files are not trusted: they are validated."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from mmspec.files import save_text
from mmspec.registry.printable import printable, refuse_control
from mmspec.report.trust import problem

Cell = TypeVar("Cell")


def save(path: Path, cells: Sequence[Any]) -> None:
    """Write dataclasses, a line each; the file is written whole or not at all."""
    save_text(path, "".join(json.dumps(asdict(cell), ensure_ascii=False) + "\n" for cell in cells))


def load(path: Path, kind: type[Cell], command: str, refuse: Callable[[Cell], None]) -> list[Cell]:
    """Read and validate a document.

    Args:
        path: The file.
        kind: The dataclass of its lines.
        command: The command that writes such documents, for messages.
        refuse: Raises a ValueError for a cell that contradicts itself.

    Raises:
        ValueError: The file is not such a document, or a text in it has control characters; names the line.
    """
    reader, cells = TypeAdapter(kind), list[Cell]()
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            cells.append(reader.validate_json(line))
            for text in _texts(vars(cells[-1])):
                refuse_control(text, f"the text {printable(text)!r}")
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


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value that was read from JSON."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, str):
        yield value
