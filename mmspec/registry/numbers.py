"""Numbers that users hand over, refused by name where they are none: `"3"` is a text."""

from numbers import Integral, Real
from operator import index
from typing import Any, SupportsIndex


def integers(**given: Any) -> None:
    """Refuse what is neither an integer nor None."""
    _refuse("an integer", Integral, given)


def numbers(**given: Any) -> None:
    """Refuse what is neither a number nor None."""
    _refuse("a number", Real, given)


def required(**given: Any) -> None:
    """Refuse None."""
    for name, value in given.items():
        if value is None:
            raise ValueError(f"{name} must be a number, got None")


def whole(name: str, value: Any) -> int:
    """`value` as an integer that is 0 or more; refuses others."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex) or index(value) < 0:
        raise ValueError(f"{name} must be an integer >= 0, got {value!r}")
    return index(value)


def _refuse(what: str, kind: type, given: dict[str, Any]) -> None:
    for name, value in given.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, kind)):
            raise ValueError(f"{name} must be {what}, got {value!r}")
