"""A value that holds in a block, for the thread and context that entered it, also where torch traces the block.

torch cannot trace a context variable. It traces lists, and one trace at a time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar

import torch

Value = TypeVar("Value")


class Traceable(Generic[Value]):
    """The value of the innermost block; None outside of blocks."""

    def __init__(self, name: str) -> None:
        self._variable: ContextVar[Value | None] = ContextVar(name, default=None)
        self._traced: list[Value] = []

    def get(self) -> Value | None:
        if torch.compiler.is_compiling():
            return self._traced[-1] if self._traced else None
        return self._variable.get()

    @contextmanager
    def holding(self, value: Value) -> Iterator[None]:
        """Inside the block, `get` returns this value."""
        if torch.compiler.is_compiling():
            self._traced.append(value)
            yield
            self._traced.pop()
            return
        token = self._variable.set(value)
        try:
            yield
        finally:
            self._variable.reset(token)
