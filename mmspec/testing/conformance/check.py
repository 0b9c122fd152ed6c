"""A check: one promise of one component. `promises()` is the list of all promises."""

import unittest
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from mmspec.registry import Spec
from mmspec.registry.suggest import unknown
from mmspec.testing.conformance import (
    degenerate,
    drafted_distributions,
    drafters,
    exactness,
    manifest,
    methods,
    policies,
    rules,
    targets,
)
from mmspec.testing.conformance.promise import DECLARED, NOTHING, Broken, Promise, said
from mmspec.testing.conformance.subject import Subject

MODULES = (manifest, drafters, drafted_distributions, rules, exactness, degenerate, policies, targets, methods)
"""The modules that declare promises, in the order in which the checks run."""

Status = Literal["pass", "fail", "xfail", "skip"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a check: one line of `mmspec check`."""

    check: str
    component: str  # the component's qualified name: `text:suffix`
    status: Status  # `pass`, `fail`, `xfail` (it fails, and was expected to) or `skip` (it could not be tried)
    number: str  # what was measured; never empty
    reason: str = ""  # why it did not pass; empty where it did
    kind: str = ""  # the component's kind: components of several kinds may share a name


@dataclass(frozen=True)
class Check:
    """A named check of one component."""

    promise: Promise  # what is checked
    subject: Subject  # the component, with everything that it is tried on
    expected: str | None = None  # why the check is expected to fail; None where it is not

    @property
    def name(self) -> str:
        return self.promise.name

    @property
    def component(self) -> Spec:
        return self.subject.component

    def __call__(self) -> str:
        """The number that was measured; an `AssertionError` says how a promise is broken, a `SkipTest` what lacks."""
        return self.promise.measure(self.subject)

    def outcome(self) -> Outcome:
        """Measure and catch every exception."""
        try:
            number = self()
        except unittest.SkipTest as missing:
            return self._outcome("skip", NOTHING, str(missing))
        except Exception as error:  # whatever a component raises is a broken promise
            number = error.number if isinstance(error, Broken) else NOTHING
            if self.expected is not None:
                return self._outcome("xfail", number, self.expected)
            why = error.reason if isinstance(error, Broken) else said(error)
            first = self.subject.failed.setdefault(why, self.name)
            if first != self.name:
                return self._outcome("fail", number, f"as in {first}")
            return self._outcome("fail", number, f"{why} [{self.promise.text}]")
        if self.expected is not None:
            why = f"it was expected to fail ({self.expected}) and passes now; remove the expectation"
            return self._outcome("fail", number, why)
        return self._outcome("pass", number)

    def _outcome(self, status: Status, number: str, reason: str = "") -> Outcome:
        return Outcome(self.name, self.component.qualified, status, number, reason, self.component.kind)


def promises() -> tuple[Promise, ...]:
    """Every promise, in the order in which the checks run."""
    order = [module.__name__ for module in MODULES]
    return tuple(sorted(DECLARED, key=lambda promise: order.index(promise.measure.__module__)))


def known(name: str) -> str:
    """`name`, if there is a promise of that name."""
    names = [promise.name for promise in promises()]
    if name not in names:
        raise ValueError(unknown("check", name, names))
    return name


def claimed(component: Spec) -> Iterable[Promise]:
    """The promises of a component, read from its manifest alone."""
    return (p for p in promises() if component.kind in p.kinds and p.when(component))
