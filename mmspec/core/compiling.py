"""Compiling a function over fixed buffers: inductor, and on CUDA one graph of all that it launches."""

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, Generic, TypeVar

import torch

Result = TypeVar("Result")

BACKEND = "inductor"
"""torch's compiler. `eager` only traces, so that tests of what can be traced take no compiler."""

WARM_RUNS = 3
"""Runs before a graph is recorded: libraries choose algorithms and allocate workspaces in the first ones."""


class Compiled(Generic[Result]):
    """A method over fixed buffers, compiled on first use.

    Args:
        method: A bound method. It reads and writes buffers of its object; it has no argument, no host sync, and no
            shape that depends on data.
        device: Where the buffers are. On CUDA, results are written to the same tensors in every call.
    """

    def __init__(self, method: Callable[[], Result], device: torch.device) -> None:
        assert isinstance(method, MethodType)
        own: Any = method.__func__
        # torch counts recompilations by code object: a copy keeps those of one plan from another's.
        function = FunctionType(
            own.__code__.replace(), own.__globals__, own.__name__, own.__defaults__, own.__closure__
        )
        self._function: Callable[[], Result] = torch.compile(
            MethodType(function, method.__self__), fullgraph=True, dynamic=False, backend=BACKEND
        )
        self._device = device
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Result

    def warm(self) -> None:
        """Compile, and on CUDA record the graph. The buffers must be such that running the method changes nothing."""
        if self._device.type != "cuda":
            self._function()
            return
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_RUNS):
                self._function()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._result = self._function()
        self._graph = graph

    def __call__(self) -> Result:
        if self._graph is None:
            return self._function()
        self._graph.replay()
        return self._result
