"""Validation of measurements' JSON before anything of it is shown, since no file is trusted.

A benchmark's result is one document; of smaller measurements every cell is a line. Seconds are positive and finite,
paired lists of repeats have equal lengths, peers belong to settings that exist, stored ratios follow from the repeats,
and no text holds a control character. Text that Markdown would misread is accepted here and escaped where Markdown is
written (`mmspec.report.table`).
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from mmspec.files import save_text
from mmspec.registry.fields import NAME
from mmspec.registry.printable import printable, refuse_control
from mmspec.report.result import Peer, Result, Row
from mmspec.report.views import plain_of, real, vs_best

Cell = TypeVar("Cell")


def load_result(path: Path) -> Result:
    """Read and validate a document that `Result.save` wrote; refuses what is none, by its place."""
    return checked(Path(path).read_bytes(), str(path))


def checked(document: bytes, name: str) -> Result:
    """The result in a document."""
    try:
        result = TypeAdapter(Result).validate_json(document)
        _refuse_controls(asdict(result))
        if not NAME.fullmatch(result.kind):
            raise ValueError(f"its kind is lower-case words, not {printable(result.kind)!r}")
        _refuse_unpaired(result)
    except ValidationError as error:
        raise ValueError(f"{name} is not the result of `mmspec bench`: {problem(error, 'the document')}") from None
    except ValueError as error:
        raise ValueError(f"{name} is not the result of `mmspec bench`: {error}") from None
    return result


def problem(error: ValidationError, whole: str) -> str:
    """The first thing that is wrong with a document, and where; `whole` names a document that is wrong as such."""
    first = error.errors()[0]
    return f"{printable('.'.join(map(str, first['loc'])) or whole)}: {printable(first['msg'])}"


def _refuse_controls(document: Any) -> None:
    for text in _texts(document):
        refuse_control(text, f"the text {printable(text)!r}")


def _texts(value: Any) -> Iterator[str]:
    """Every text in a document, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def _refuse_unpaired(result: Result) -> None:
    for row in result.rows:
        _refuse_unpaired_row(row)
    for key, peer in result.peers.items():
        _refuse_unpaired_peer(result, key, peer)
    if result.vs_best and result.vs_best != vs_best(result):
        raise ValueError("its vs_best is not what its repeats give; no ratio is typed by hand")


def _refuse_unpaired_row(row: Row) -> None:
    what = f"the row {row.method!r} in {row.setting!r}"
    if not row.repeats_s:
        raise ValueError(f"{what} has no repeats")
    paired = {"plain_repeats_s": row.plain_repeats_s, "alone_repeats_s": row.alone_repeats_s or row.repeats_s}
    for name, others in paired.items():
        if len(others) != len(row.repeats_s):
            raise ValueError(f"{what} has {len(row.repeats_s)} repeats and {len(others)} in {name}; they are pairs")


def _refuse_unpaired_peer(result: Result, key: str, peer: Peer) -> None:
    if not key.startswith(f"{peer.setting} / ") or peer.setting not in result.settings:
        raise ValueError(f"the peer {key!r} is of no setting that has rows; its key is 'SETTING / NAME'")
    own = len(peer.repeats_s)
    paired = {len(row.repeats_s) for row in real(result, peer.setting)} | {len(plain_of(result, peer.setting))}
    if own and paired != {own}:
        raise ValueError(f"the peer {key!r} has {own} repeats and its setting's rows {max(paired - {own})}")


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
            _refuse_controls(vars(cells[-1]))
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
