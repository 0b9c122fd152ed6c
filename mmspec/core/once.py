"""Values that are computed once, in forms that torch can trace.

`functools.cached_property` holds a lock on Python 3.11, which torch cannot trace; of `lru_cache` it warns.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, Generic, ParamSpec, TypeVar, overload

import torch

Value = TypeVar("Value")
Arguments = ParamSpec("Arguments")


def known(function: Callable[Arguments, Value]) -> Callable[Arguments, Value]:
    """A function of hashable arguments that keeps its latest results; while torch traces, it computes."""
    keeps: Any = lru_cache(256)(function)

    @wraps(function)
    def result(*arguments: Arguments.args, **named: Arguments.kwargs) -> Value:
        kept: Value = (function if torch.compiler.is_compiling() else keeps)(*arguments, **named)
        return kept

    return result


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
