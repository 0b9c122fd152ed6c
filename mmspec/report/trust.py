"""Validation of measurements' JSON before anything of it is shown, since no file is trusted.

Seconds are positive and finite, paired lists of repeats have equal lengths, peers belong to settings that exist, stored
ratios follow from the repeats, and no text holds a control character. Text that Markdown would misread is accepted.
"""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from mmspec.registry.fields import NAME
from mmspec.registry.printable import printable, refuse_control
from mmspec.report.result import Peer, Result, Row
from mmspec.report.views import plain_of, real, vs_best

Kind = TypeVar("Kind", bound=Result)


def load_result(path: Path) -> Result:
    """Read and validate a document that `Result.save` wrote; refuses what is none, by its place."""
    return checked(Path(path).read_bytes(), str(path), Result)


def checked(document: bytes, name: str, kind: type[Kind]) -> Kind:
    """The result of that kind in a document."""
    try:
        result = TypeAdapter(kind).validate_json(document)
        refuse_controls(asdict(result))
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


def refuse_controls(document: Any) -> None:
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
