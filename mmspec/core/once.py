"""Values that are computed once, in forms that torch can trace.

`functools.cached_property` holds a lock on Python 3.11, which torch cannot trace; of `lru_cache` it warns.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
        if torch.compiler.is_compiling():
            return function(*arguments, **named)
        kept: Value = keeps(*arguments, **named)
        for results in _keeping:
            results.append(kept)
        return kept

    return result


_keeping: list[list[Any]] = []
"""The lists of the blocks that run."""


@contextmanager
def keeping() -> Iterator[list[Any]]:
    """A block, and the list of what `known` functions return in it.

    A graph that is recorded in the block reads these tensors again: whoever holds the graph holds the list.
    """
    results: list[Any] = []
    _keeping.append(results)
    try:
        yield results
    finally:
        _keeping[:] = [each for each in _keeping if each is not results]


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
