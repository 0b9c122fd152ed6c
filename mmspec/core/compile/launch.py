"""A function over fixed buffers as one launch, and functions that torch compiles."""

import atexit
import subprocess
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from types import CodeType, FunctionType, MethodType
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Result = TypeVar("Result")

BACKEND = "inductor"
"""torch's compiler. `eager` only traces, so that tests of what can be traced take no compiler."""

WARM_RUNS = 3
"""Runs before a graph is recorded: libraries choose algorithms and allocate workspaces in the first ones."""

OPTIONS: dict[str, Any] = {"guard_filter_fn": torch.compiler.skip_guard_on_inbuilt_nn_modules_unsafe}
"""Inductor's options: the attributes of torch's own layers are not compared in every round. Nobody changes these, but
for weights, which a round reads anew, or `mmspec.core.frozen` watches."""

FROZEN: dict[str, Any] = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "CPP"}
"""Inductor's options where weights are constants: its own products. With the library's beside them, a clock would
choose between the two, and so how sums are rounded."""


class OneLaunch(Generic[Result]):
    """A method over fixed buffers as one launch: on CUDA a graph of the kernels that it launches.

    Args:
        method: A bound method. It reads and writes buffers of its object; it has no argument, no host sync, and no
            shape that depends on data.
        device: Where the buffers are. On CUDA, results are written to the same tensors in every call.
        watched: Whether the graph keeps what the method reads, as it must where torch has not compiled the method.
        frozen: Whether the weights of modules become constants of what is compiled (`mmspec.core.frozen`).
        before: What runs in front of the method, never compiled: the same numbers to the bit as everywhere else.
    """

    def __init__(
        self,
        method: Callable[[], Result],
        device: torch.device,
        *,
        watched: bool,
        frozen: bool = False,
        before: Callable[[], None] | None = None,
    ) -> None:
        self._function, self._device, self._watched = method, device, watched
        self._frozen, self._before = frozen, before
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Result
        self._reads: list[Tensor] = []

    def warm(self) -> None:
        """Compile, and on CUDA record the graph. The buffers must be such that running the method changes nothing."""
        if self._device.type != "cuda":
            with freezing(self._frozen):
                self._run()
            return
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_RUNS):
                self._run()
            if self._watched:
                with Reading() as reading:
                    self._run()
                self._reads = reading.found
                del reading  # and what was made
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may allocate meanwhile.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            self._result = self._run()
        self._graph = graph

    @property
    def recorded(self) -> bool:
        """True if there is a graph, which needs nothing but its buffers."""
        return self._graph is not None

    def __call__(self) -> Result:
        if self._graph is None:
            return self._run()
        self._graph.replay()
        return self._result

    def _run(self) -> Result:
        if self._before is not None:
            self._before()
        return self._function()


class Reading(TorchDispatchMode):
    """Collects the tensors that the operations of a block read, and did not make.

    A graph knows addresses alone: what it reads, such as a table that a cache of ours may drop, must live as long.
    Weights do not count: their owner may move them, and every call asks where they lie (`Pool.renew`).
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[Tensor] = []
        self._storages: set[int] = set()
        self._made: list[Tensor] = []  # they live as long as this, so that no two storages have one address

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for each in tree_leaves((args, kwargs)):
            if isinstance(each, Tensor) and self._is_new(each) and not isinstance(each, nn.Parameter):
                self.found.append(each)
        out = func(*args, **(kwargs or {}))
        for each in tree_leaves(out):
            if isinstance(each, Tensor) and self._is_new(each):
                self._made.append(each)
        return out

    def _is_new(self, tensor: Tensor) -> bool:
        plain = type(tensor) in (Tensor, nn.Parameter)  # others may have no storage
        storage = tensor.untyped_storage()._cdata if plain else id(tensor)
        known = storage in self._storages
        self._storages.add(storage)
        return not known


def compiled(
    method: Callable[..., Result], frozen: bool = False, code: CodeType | None = None
) -> Callable[..., Result]:
    """A bound method that torch compiles on first use.

    `code` is the code of the same method of another object (`copied`): what torch compiled for that object serves this
    one, too, where torch's guards hold.
    """
    assert isinstance(method, MethodType)
    if BACKEND == "inductor":
        _end_quickly()
    own: Any = method.__func__
    named = own.__name__, own.__defaults__, own.__closure__
    function = FunctionType(copied(method) if code is None else code, own.__globals__, *named)
    done: Callable[..., Result] = torch.compile(
        MethodType(function, method.__self__),
        fullgraph=True,
        dynamic=False,
        backend=BACKEND,
        options=OPTIONS | (FROZEN if frozen else {}) if BACKEND == "inductor" else None,
    )
    return done


def copied(method: Callable[..., Any]) -> CodeType:
    """A copy of a method's code; torch counts recompilations by code object, and keeps by it what it compiled."""
    assert isinstance(method, MethodType)
    code: CodeType = method.__code__
    return code.replace()


@contextmanager
def freezing(frozen: bool) -> Iterator[None]:
    """A block in which torch compiles with frozen weights, if so wanted."""
    if not frozen:
        yield
        return
    from torch._inductor import config  # takes seconds

    # Dynamo reads the setting of freezing; an option of one compilation does not reach it.
    with config.patch(freezing=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TypedStorage is deprecated")  # torch's own use of it
        yield


PATIENCE = 1.0
"""Seconds that torch's compile workers have to end when this process does."""


@cache
def _end_quickly() -> None:
    """From now on this process does not wait long at its end for the workers of torch's compiler."""
    from torch._inductor import async_compile  # noqa: F401  # whose own handler then runs behind ours

    atexit.register(_leave)


def _leave() -> None:
    """Let the compiler's workers end within `PATIENCE`: torch waits for them for minutes."""
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.compile_worker.subproc_pool import SubprocPool

    pool = AsyncCompile.process_pool() if AsyncCompile.process_pool.cache_info().currsize else None
    if isinstance(pool, SubprocPool):
        pool.process.wait = partial(_ended, pool.process.wait, pool.process.kill)  # type: ignore[method-assign]


def _ended(wait: Callable[..., int], kill: Callable[[], None], timeout: float | None = None) -> int:
    """The exit status of a process, which is killed if it takes longer than `PATIENCE`; its workers then notice."""
    try:
        return wait(PATIENCE)
    except subprocess.TimeoutExpired:
        kill()
        return wait(timeout)
