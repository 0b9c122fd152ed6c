"""A claim about many (any decoder, any head, any folder): how a case is drawn, run, and shown.

A case is a flat dictionary of JSON values: it can be kept in a file (`found.json`), and is made simpler by leaving keys
out.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

Case = dict[str, Any]
_T = TypeVar("_T")


class Dice(random.Random):
    """The random numbers of one draw, and its turn where options are dealt: each has one turn before any has two."""

    deck, number = "", 0

    @classmethod
    def of(cls, deck: str, number: int) -> "Dice":
        """Those of the `number`-th draw of a claim and a seed, which name the deck."""
        dice = cls(f"{deck} {number}")
        dice.deck, dice.number = deck, number
        return dice

    def dealt(self, options: Sequence[_T], number: int) -> _T:
        """The option whose turn a number is."""
        turn, place = divmod(number, len(options))
        return random.Random(f"{self.deck} {len(options)} {turn}").sample(options, len(options))[place]


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
    def draw(self, dice: Dice) -> Case:
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
