"""A mutant: a published bug, put back into the core for the length of a `with` block."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

SJD = "speculative Jacobi decoding (arXiv 2410.01699)"
SCD = "speculative coupled decoding (arXiv 2510.24211)"
CSD = "continuous speculative decoding (arXiv 2411.11925)"
ASSD = "any-subset speculative decoding (arXiv 2504.20456)"
RSD = "RSD (arXiv 2402.14160) and Sequoia (arXiv 2402.12374)"


@dataclass(frozen=True)
class Mutant:
    """A bug that the suite must see."""

    name: str  # the mutant's name
    summary: str  # what goes wrong
    source: str  # the paper or software that has the bug
    apply: Callable[[], AbstractContextManager[None]]  # `with mutant.apply(): …` runs the core with the bug


def replacing(owner: Any, name: str, make: Callable[[Callable], Any]) -> Callable[[], AbstractContextManager[None]]:
    """A context in which `owner.name` is `make(original)`; a static method must come back as `staticmethod`."""

    @contextmanager
    def apply() -> Iterator[None]:
        with mock.patch.object(owner, name, make(getattr(owner, name))):
            yield

    return apply


def both(*contexts: Callable[[], AbstractContextManager[None]]) -> Callable[[], AbstractContextManager[None]]:
    """A context in which several bugs are in the core at once."""

    @contextmanager
    def apply() -> Iterator[None]:
        with ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context())
            yield

    return apply
