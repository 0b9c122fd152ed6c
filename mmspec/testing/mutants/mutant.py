"""What a mutant is: a published bug, put back into the core for the length of a `with` block."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock


@dataclass(frozen=True)
class Mutant:
    """A bug that the suite must see.

    Attributes:
        name: What it is called.
        summary: What goes wrong.
        source: Who published or shipped it.
        apply: `with mutant.apply(): …` runs the core with the bug.
    """

    name: str
    summary: str
    source: str
    apply: Callable[[], AbstractContextManager[None]]


def replacing(owner: Any, name: str, make: Callable[[Callable], Any]) -> Callable[[], AbstractContextManager[None]]:
    """A context in which `owner.name` is `make(original)`; a static method must come back as `staticmethod`."""

    @contextmanager
    def apply() -> Iterator[None]:
        with mock.patch.object(owner, name, make(getattr(owner, name))):
            yield

    return apply


def both(*contexts: Callable[[], AbstractContextManager[None]]) -> Callable[[], AbstractContextManager[None]]:
    """Several of them at once."""

    @contextmanager
    def apply() -> Iterator[None]:
        if not contexts:
            yield
            return
        with contexts[0](), both(*contexts[1:])():
            yield

    return apply
