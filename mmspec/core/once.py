"""Attributes that are computed when they are first read.

`functools.cached_property` holds a lock on Python 3.11, which torch cannot trace.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

Value = TypeVar("Value")


class once(Generic[Value]):
    """A method without arguments as an attribute: its result is kept in the object."""

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self.compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, owner: None, kind: type) -> "once[Value]": ...
    @overload
    def __get__(self, owner: object, kind: type) -> Value: ...
    def __get__(self, owner: object | None, kind: type) -> "Value | once[Value]":
        if owner is None:
            return self
        value = self.compute(owner)
        owner.__dict__[self.name] = value  # found there from now on, before this descriptor
        return value
