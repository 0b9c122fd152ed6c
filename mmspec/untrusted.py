"""Reading files that are not trusted: JSON within limits."""

import json
from pathlib import Path
from typing import Any

from mmspec.registry.printable import shown

LARGEST = 32_000_000
"""Most bytes of a JSON file; the index of the largest published model has a tenth of it."""


def read_json(path: Path, most: int = LARGEST) -> dict[str, Any]:
    """The object that a JSON file holds.

    Args:
        path: The file.
        most: Most bytes that are read.

    Raises:
        ValueError: It cannot be read, is too large or too deep, or holds something else.
    """
    try:
        with path.open("rb") as file:
            text = file.read(most + 1)
        if len(text) > most:
            raise ValueError(f"it has more than {most:,} bytes")
        value = json.loads(text.decode())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{shown(path)} cannot be read: {shown(error)}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{shown(path)} cannot be read: it holds a {type(value).__name__}, not an object")
    return value
