"""What a check is, and the list of all of them: a function that measures a promise, and the kinds that make it."""

import importlib
import unittest
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mmspec.registry import Spec
from mmspec.registry.suggest import unknown
from mmspec.testing.conformance.outcome import Outcome, Status

if TYPE_CHECKING:
    from mmspec.testing.conformance.subject import Subject

Measure = Callable[[Any], str]
When = Callable[[Any], bool]
MODULES = ("manifest", "drafters", "drafted_distributions", "rules", "exactness", "degenerate", "targets", "methods")
NOTHING = "-"


class Untried(unittest.SkipTest):
    """A check cannot be tried; its message says what is missing. unittest and pytest know it as a skip."""


class Broken(AssertionError):
    """A promise is broken.

    Args:
        reason: How.
        number: What was measured.
    """

    def __init__(self, reason: str, number: str = NOTHING) -> None:
        super().__init__(f"{reason} ({number})" if number != NOTHING else reason)
        self.reason, self.number = reason, number


@dataclass(frozen=True)
class Promise:
    """A named check, not yet of anybody.

    Attributes:
        name: Its name: the function's, with hyphens.
        text: What is promised, in one line.
        kinds: The kinds of component that promise it.
        when: Whether a component of that kind promises it, from its manifest alone.
        measure: Measures it on a subject: returns the number, or raises.
    """

    name: str
    text: str
    kinds: tuple[str, ...]
    when: When
    measure: Measure


_PROMISES: list[Promise] = []


def promise(*kinds: str, when: When = lambda spec: True) -> Callable[[Measure], Measure]:
    """Make a function a check; its name and the first line of its docstring are what users see.

    Args:
        *kinds: The kinds of component that make the promise.
        when: Whether one of them makes it; sees the manifest.
    """

    def add(measure: Measure) -> Measure:
        assert measure.__doc__, f"{measure.__name__} does not say what it promises"
        text = measure.__doc__.strip().splitlines()[0]
        _PROMISES.append(Promise(measure.__name__.replace("_", "-"), text, kinds, when, measure))
        return measure

    return add


def promises() -> tuple[Promise, ...]:
    """Every check that there is, in the order in which they run."""
    for module in MODULES:
        importlib.import_module(f"mmspec.testing.conformance.{module}")
    # Whoever imported one of the modules before does not change the order.
    return tuple(sorted(_PROMISES, key=lambda promise: MODULES.index(promise.measure.__module__.rpartition(".")[2])))


def known(name: str) -> str:
    """`name`, if there is such a check.

    Raises:
        ValueError: There is none; says which is nearest.
    """
    names = [promise.name for promise in promises()]
    if name not in names:
        raise ValueError(unknown("check", name, names))
    return name


@dataclass(frozen=True)
class Check:
    """A named check of one component.

    Attributes:
        promise: What is checked.
        subject: On whom.
        expected: Why it is expected to fail; None where it is not.
    """

    promise: Promise
    subject: "Subject"
    expected: str | None = None

    @property
    def name(self) -> str:
        """The check's name."""
        return self.promise.name

    @property
    def component(self) -> Spec:
        """The spec of what is checked."""
        return self.subject.component

    def __call__(self) -> str:
        """Measure. Returns the number.

        Raises:
            AssertionError: The promise is broken; says how.
            SkipTest: It cannot be tried; says what is missing.
        """
        return self.promise.measure(self.subject)

    def outcome(self) -> Outcome:
        """Measure, whatever happens."""
        try:
            number = self()
        except unittest.SkipTest as missing:
            return self._came_to("skip", NOTHING, str(missing))
        # A component may raise anything; all of it is a broken promise.
        except Exception as error:
            number = error.number if isinstance(error, Broken) else NOTHING
            if self.expected is not None:
                return self._came_to("xfail", number, self.expected)
            why = error.reason if isinstance(error, Broken) else f"{type(error).__name__}: {error}"
            return self._came_to("fail", number, f"{why} [{self.promise.text}]")
        if self.expected is not None:
            why = f"it was expected to fail ({self.expected}) and passes now; remove the expectation"
            return self._came_to("fail", number, why)
        return self._came_to("pass", number)

    def _came_to(self, status: Status, number: str, reason: str = "") -> Outcome:
        return Outcome(self.name, self.component.qualified, status, number, reason, self.component.kind)


def claimed(component: Spec) -> Iterable[Promise]:
    """The checks of a component, from its manifest alone."""
    return (p for p in promises() if component.kind in p.kinds and p.when(component))
