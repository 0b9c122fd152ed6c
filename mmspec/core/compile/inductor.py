"""Compiling a function over fixed buffers: inductor, and on CUDA one graph of all that it launches."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, MethodType
from typing import Any, Generic, TypeVar

import torch

Result = TypeVar("Result")

BACKEND = "inductor"
"""torch's compiler. `eager` only traces, so that tests of what can be traced take no compiler."""

WARM_RUNS = 3
"""Runs before a graph is recorded: libraries choose algorithms and allocate workspaces in the first ones."""

OPTIONS: dict[str, Any] = {"guard_filter_fn": torch.compiler.skip_guard_on_inbuilt_nn_modules_unsafe}
"""Inductor's options: the attributes of torch's own layers are not compared in every round. Nobody changes these, but
for weights, which a round reads anew, or `mmspec.core.frozen` watches."""

FROZEN: dict[str, Any] = {
    "max_autotune_gemm": True,
    "max_autotune_gemm_backends": "CPP,ATEN",
    "max_autotune_report_choices_stats": False,
}
"""Inductor's options where weights are constants: the faster of its own products and the library's, per shape."""


class Compiled(Generic[Result]):
    """A method over fixed buffers, compiled on first use.

    Args:
        method: A bound method. It reads and writes buffers of its object; it has no argument, no host sync, and no
            shape that depends on data.
        device: Where the buffers are. On CUDA, results are written to the same tensors in every call.
        frozen: Whether the weights of modules are constants (`mmspec.core.frozen`).
    """

    def __init__(self, method: Callable[[], Result], device: torch.device, frozen: bool = False) -> None:
        assert isinstance(method, MethodType)
        own: Any = method.__func__
        # torch counts recompilations by code object: with a copy, one plan's do not count for another.
        function = FunctionType(
            own.__code__.replace(), own.__globals__, own.__name__, own.__defaults__, own.__closure__
        )
        self._function: Callable[[], Result] = torch.compile(
            MethodType(function, method.__self__),
            fullgraph=True,
            dynamic=False,
            backend=BACKEND,
            options=OPTIONS | (FROZEN if frozen else {}) if BACKEND == "inductor" else None,
        )
        self._device, self._frozen = device, frozen
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Result

    def warm(self) -> None:
        """Compile, and on CUDA record the graph. The buffers must be such that running the method changes nothing."""
        if self._device.type != "cuda":
            with freezing(self._frozen):
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


@contextmanager
def freezing(frozen: bool) -> Iterator[None]:
    """A block in which torch compiles with frozen weights, if so wanted, and does not print what it measures."""
    if not frozen:
        yield
        return
    from torch._inductor import config, select_algorithm  # takes seconds

    printing = vars(select_algorithm).get("PRINT_AUTOTUNE", True)
    select_algorithm.PRINT_AUTOTUNE = False
    try:
        # Dynamo reads the setting of freezing; an option of one compilation does not reach it.
        with config.patch(freezing=True), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "TypedStorage is deprecated")  # torch's own use of it
            yield
    finally:
        select_algorithm.PRINT_AUTOTUNE = printing
