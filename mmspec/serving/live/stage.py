"""A page and its server side: a stage has one session for every open page.

No message of a page is trusted: a wrong field is a `ValueError`, which the page shows.
"""

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from PIL.Image import Image

from mmspec.api import row_values
from mmspec.registry.suggest import unknown

Send = Callable[[Mapping[str, Any]], None]
"""Sends a message to the page, as JSON; from any thread, at any time, without waiting."""


class Session(Protocol):
    def receive(self, message: Mapping[str, Any]) -> None:
        """Take a message of the page. What comes from a page is not trusted."""

    def close(self) -> None:
        """The page is gone: stop all threads, soon."""


@dataclass(frozen=True)
class Stage:
    name: str  # where the page is: `/name/`
    title: str  # what it is called in the list of pages
    page: Path  # the folder of its `index.html`, scripts and styles, beside `/shared/page.js` and `/shared/page.css`.
    open: Callable[[Send], Session]  # begins a session


Message = Mapping[str, Any]


def one_of(message: Message, name: str, known: Iterable[str], what: str | None = None) -> str:
    """A field that is one of some words; `what` these name, for messages, if the field has another name."""
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


def png(picture: Image) -> str:
    """A picture as a PNG in base64."""
    return base64.b64encode(row_values.png(picture)).decode()
