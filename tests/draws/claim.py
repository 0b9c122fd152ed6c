"""A claim about many (any decoder, any head, any folder): how a case is drawn, run, and shown.

A case is a flat dictionary of JSON values: it can be kept in a file (`found.json`), and is made simpler by leaving keys
out.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

Case = dict[str, Any]


class Broken(AssertionError):
    """The claim does not hold in a case; the message has the numbers."""


class Claim(ABC):
    """One claim, and the space that it names.

    Attributes:
        name: Of the module that has it, and of its cases in `found.json`.
        share: Part of the time that it gets beside the others.
        fixed: Number of draws that CI makes: those of seed 0.
        needed: Keys that every case has.
    """

    name: str
    share: float = 1.0
    fixed: int = 40
    needed: frozenset[str] = frozenset()

    @abstractmethod
    def draw(self, dice: random.Random) -> Case:
        """A case of the whole space; nothing is run for it that is slow."""

    @abstractmethod
    def run(self, case: Case) -> str:
        """What happened, in one or two words that are counted: `equal`, `refused`, `rounding`, `stock fails`, …

        Raises:
            Broken: The claim does not hold.
        """

    @abstractmethod
    def space(self) -> Iterable[str]:
        """All parts of the space, each `kind:name`: the shares of each kind that were drawn are counted."""

    @abstractmethod
    def parts(self, case: Case) -> Iterable[str]:
        """The parts of the space that a case covers."""

    @abstractmethod
    def program(self, case: Case) -> str:
        """Fifteen lines of Python that show a case to a stranger: torch, transformers or diffusers, and mmspec."""

    def simpler(self, case: Case) -> Iterator[Case]:
        """Cases with less in them, to be tried where this one fails: each optional key left out in turn."""
        for key in [key for key in case if key not in self.needed]:
            yield {name: value for name, value in case.items() if name != key}
