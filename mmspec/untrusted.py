"""Reading files that are not trusted: JSON within limits."""

import json
from pathlib import Path
from typing import Any

from mmspec.registry.printable import shown

LARGEST = 32_000_000  # most bytes of a JSON file; the index of the largest published model has a tenth of it


def read_json_lines(path: Path, most: int = LARGEST) -> list[dict[str, Any]]:
    """The objects that a file holds, one of JSON a line; arguments and errors as in `numbered_json_lines`."""
    return [value for _, value in numbered_json_lines(path, most)]


def numbered_json_lines(path: Path, most: int = LARGEST) -> list[tuple[int, dict[str, Any]]]:
    """The objects that a file holds, one of JSON a line, and the numbers of their lines; empty lines are left out."""
    try:
        lines = _text(path, most).split("\n")  # a text inside may hold what else separates lines, as U+2028 does
    except (OSError, ValueError) as error:
        raise ValueError(f"{shown(path)} cannot be read: {shown(error)}") from error
    there = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    return [(number, _object(line, f"line {number} of {shown(path)}")) for number, line in there]


def _object(line: str, where: str) -> dict[str, Any]:
    """The object on one line."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} cannot be read: {shown(error)}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{where} cannot be read: it holds a {type(value).__name__}, and every line holds an object")
    return value


def read_json(path: Path, most: int = LARGEST) -> dict[str, Any]:
    """The object that a JSON file holds; refuses one that is too large or too deep, or holds something else."""
    try:
        value = json.loads(_text(path, most))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{shown(path)} cannot be read: {shown(error)}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{shown(path)} cannot be read: it holds a {type(value).__name__}, not an object")
    return value


def _text(path: Path, most: int) -> str:
    with path.open("rb") as file:
        text = file.read(most + 1)
    if len(text) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return text.decode()
