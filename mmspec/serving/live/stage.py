"""A page and its server side: a stage has one session for every open page."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

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
