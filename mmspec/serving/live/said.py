"""The messages of a page, field by field. None is trusted: a wrong field is a `ValueError`, which the page shows."""

from collections.abc import Iterable, Mapping
from typing import Any

from mmspec.registry.suggest import unknown

Message = Mapping[str, Any]


def one_of(message: Message, name: str, known: Iterable[str], what: str | None = None) -> str:
    """A field that is one of some words.

    Messages say `what` the words name, if the field has another name.
    """
    value, words = message.get(name), list(known)
    if not isinstance(value, str) or value not in words:
        raise ValueError(unknown(what or name, str(value), words))
    return value


def text(message: Message, name: str, most: int) -> str:
    """A field that is a text of 1 to `most` characters."""
    value = message.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= most:
        raise ValueError(f"{name} is a text of 1 to {most} characters")
    return value


def whole(message: Message, name: str, most: int, least: int = 0) -> int:
    """A field that is a whole number from `least` to `most`."""
    value = message.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name} is a whole number from {least} to {most}, not {value!r:.40}")
    return value


def number(message: Message, name: str, least: float, most: float) -> float:
    """A field that is a number from `least` to `most`."""
    value = message.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name} is a number from {least:g} to {most:g}, not {value!r:.40}")
    return float(value)
