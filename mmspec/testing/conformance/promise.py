"""A promise: a function that measures something on a component, and which components have to pass it."""

import traceback
import unittest
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Measure = Callable[[Any], str]
When = Callable[[Any], bool]
NOTHING = "-"
"""Stands for the number where nothing was measured."""
OTHERS = Path(__file__).parents[2], Path(torch.__file__).parent
"""Folders without a line of an author's: mmspec and torch."""


class Untried(unittest.SkipTest):
    """A promise cannot be tried; the message says what is missing. unittest and pytest treat it as a skip."""


class Broken(AssertionError):
    def __init__(self, reason: str, number: str = NOTHING) -> None:
        super().__init__(f"{reason} ({number})" if number != NOTHING else reason)
        self.reason, self.number = reason, number


def said(error: Exception) -> str:
    """An error's kind and message, and the line of the plugin where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(Path(frame.filename).is_relative_to(other) for other in OTHERS)]
    where = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {error}{where}"


@dataclass(frozen=True)
class Promise:
    """A named check that is not tied to a component yet."""

    name: str  # the function's name, with hyphens
    text: str  # what is promised, in one line
    kinds: tuple[str, ...]  # the kinds of component that make the promise
    when: When  # whether a component of these kinds makes it; runs nothing of it
    measure: Measure  # measures the promise on a subject: returns the number, or raises `Broken` or `Untried`


DECLARED: list[Promise] = []
"""Every promise whose module has been imported."""


def promise(*kinds: str, when: When = lambda component: True) -> Callable[[Measure], Measure]:
    """Declare a function as a promise; users see its name and the first line of its docstring.

    Components of these kinds make it, if `when` says so, which runs nothing of it.
    """

    def add(measure: Measure) -> Measure:
        assert measure.__doc__, f"{measure.__name__} does not say what it promises"
        text = measure.__doc__.strip().splitlines()[0]
        DECLARED.append(Promise(measure.__name__.replace("_", "-"), text, kinds, when, measure))
        return measure

    return add


def is_exact(component: Any) -> bool:
    """True if a rule or a method says that its output follows the target's distribution."""
    return component.exactness in ("invariant", "lossless")


def has_options(component: Any) -> bool:
    """True if a drafter, a rule or a policy has options; the factory says so."""
    try:
        return component.load_options() is not None
    except (ImportError, ValueError):  # as the promises about these say
        return component.options is not None


def claims(*exactness: str) -> When:
    """True if a component claims one of these exactness words."""
    return lambda component: component.exactness in exactness


def offers(word: str) -> When:
    """True if a component offers a word."""
    return lambda component: word in component.offers
