"""Passes of the target, and rounds of the loop, by nodes, rows and context: time, floor, launches, waits.

On CUDA torch's profiler counts launches and waits: the driver's calls. On a CPU every operation that is not a view
counts as one launch, since on a GPU it would be at least one, and every value that the host reads as one wait. Among
these are reads that the library makes on a CPU only, where they cost nothing: waits on a CPU are an upper bound.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from mmspec.core.capabilities import OneShape
from mmspec.core.compile.protocols import DraftsOfRows
from mmspec.core.drafters.none import Memoryless
from mmspec.core.drafters.static_tree import levels_of, likeliest_tree
from mmspec.core.noise import DraftNoise
from mmspec.core.out_of_memory import out_of_memory
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft
from tools.bench.core.subject import VARIANTS, Subject

DEPTH = 8
"""Most units per path of a tree: what real methods draft."""
OUTSIDE = ("ms", "launches")
"""Figures of a round of which the bare pass's are subtracted: what is left is outside of the model."""
COUNTED = 1
"""Rounds that are counted, after the warm-up and before the timed ones."""
WARM_UP = 2
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
"""Beginnings of the names of the driver's calls, of which there are variants."""
_READS = (
    Tensor.tolist,
    Tensor.item,
    Tensor.cpu,
    Tensor.numpy,
    Tensor.nonzero,
    Tensor.__bool__,
    Tensor.__int__,
    Tensor.__float__,
    Tensor.__index__,
    torch.equal,
)
RATES = (0.6, 0.2, 0.1, 0.05)
"""Chance of a child by its rank, for the form of static trees."""


class StaticTree(Memoryless):
    """A `Drafter` for measuring the loop: drafts have always one tree, and cost next to nothing on the device.

    It has at most `depth` units a path: a chain if this is `nodes`.
    """

    needs = frozenset({"discrete"})
    everywhere = False

    def __init__(self, nodes: int, depth: int) -> None:
        self.parents = likeliest_tree(RATES, min(depth, nodes), nodes)[0] if depth < nodes else range(-1, nodes - 1)
        self.offers = frozenset({"tree" if depth < nodes else "chain"})
        self.depth = len(levels_of(self.parents))
        self._vocab = 0

    def bind(self, target: Target) -> None:
        assert target.vocab is not None
        self._vocab = target.vocab

    def width(self, k: int) -> int:
        return len(self.parents)

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        """The units that follow the root's id; siblings have distinct ones."""
        return self._behind(state.root)

    def inside(self, k: int, state: State) -> DraftsOfRows:
        return DraftsOfRows(self.parents, lambda live: self._behind(live.root), tuple(self.parents))

    def fits_inside(self, state: State) -> bool:
        return True

    def _behind(self, root: Tensor) -> Draft:
        after = torch.arange(1, len(self.parents) + 1, device=root.device)
        return Draft.tree((root[:, None] + after) % self._vocab, self.parents)


def passes(subject: Subject) -> None:
    """Bare passes of the target: `ms`, the floor, and how many times the floor that is."""
    if not isinstance(subject.target, OneShape):
        return
    target: Any = subject.target
    sizes = subject.sizes
    most = max(sizes.nodes)
    for rows, context in subject.calls(sizes.contexts):
        started = target.start_fixed(subject.workload.prompt(rows, context), 1, most)
        root = torch.zeros(rows, dtype=torch.int64, device=subject.device)
        room = torch.full_like(root, most)
        for nodes in sizes.nodes:
            draft = Draft.alone(root)
            if nodes > 1:
                drafted = root[:, None].expand(-1, nodes - 1)
                draft = Draft.tree(drafted, drafter(subject, nodes).parents).rooted(root, room)
            what = {"rows": rows, "nodes": nodes, "context": context}
            try:
                seconds = subject.seconds(partial(target.verify, started.cache, draft))
            except Exception as error:
                if not out_of_memory(error):
                    raise
                subject.say("skipped", **what, why="out of memory")
                break
            floor, computed, read = subject.floor(**what), subject.computed(rows, nodes), subject.read(**what)
            figures = {"ms": _ms(seconds), "floor_ms": _ms(floor), "times_floor": round(seconds / floor, 3)}
            if context == min(sizes.contexts):  # a pass launches the same kernels at every context
                figures["launches"] = count(partial(target.verify, started.cache, draft), subject.device).launches
            subject.say("pass", **what, **figures, operations=computed, bytes=read)
        del started


def rounds(subject: Subject) -> None:
    """Whole rounds of the loop at the smallest context: beside `ms`, launches, waits, and the time outside the pass."""
    calls = list(subject.calls(subject.sizes.contexts[:1]))
    # One variant after the other: a slow one takes no time from those before it.
    for variant, (rows, context), nodes in product(subject.variants, calls, subject.sizes.nodes):
        size = {"rows": rows, "nodes": nodes, "context": context}
        try:
            figures = _round(subject, variant, **size)
        except Exception as error:
            if not out_of_memory(error):
                raise
            subject.say("skipped", variant=variant, **size, why="out of memory")
            continue
        bare = _pass_of(subject, **size)
        outside = {f"outside_{name}": round(figures[name] - bare[name], 4) for name in OUTSIDE if bare}
        subject.say("round", variant=variant, **size, **figures, **outside, floor_ms=_ms(subject.floor(**size)))


def drafter(subject: Subject, nodes: int) -> StaticTree:
    """Drafts that have so many nodes with the root: a tree, or a chain where the target verifies no trees."""
    return StaticTree(nodes - 1, DEPTH if subject.trees else nodes - 1)


def _round(subject: Subject, variant: str, rows: int, nodes: int, context: int) -> dict[str, float]:
    parts = (drafter(subject, nodes),) if nodes > 1 else ()
    decoder = subject.decoder(*parts, k=parts[0].depth if parts else 0, **VARIANTS[variant])
    truth = None if subject.workload.truth is None else subject.workload.truth(rows)
    most = WARM_UP + COUNTED + subject.sizes.repeats
    limit = 2 + most * (decoder.k + 1)  # no round is cut short by the end of the call, whatever is accepted
    with subject.autocast():
        state = decoder.start(subject.workload.prompt(rows, context), limit)
        advance = partial(decoder.advance, state, truth)
        for _ in range(WARM_UP):
            advance()
        counts = count(advance, subject.device)
        seconds = subject.seconds(advance, warm_up=0)
    return {"ms": _ms(seconds), "launches": counts.launches, "waits": counts.waits}


def _pass_of(subject: Subject, rows: int, nodes: int, context: int) -> dict[str, float] | None:
    """The line of the bare pass of the same size; None if it was not measured."""
    size = {"shape": subject.shape.name, "rows": rows, "nodes": nodes, "context": context}
    return next((line for line in subject.lines.of("pass") if size.items() <= line.items()), None)


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 4)


@dataclass(frozen=True)
class Counts:
    launches: int  # kernels and graphs that were launched; on a CPU, operations that are not views
    waits: int  # how often the host waited for the device; on a CPU, how often it read a value


def count(work: Callable[[], Any], device: torch.device) -> Counts:
    """Run a piece of work once and count; it is much slower meanwhile, so its time means nothing."""
    return _profiled(work) if device.type == "cuda" else _dispatched(work)


def _profiled(work: Callable[[], Any]) -> Counts:
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        work()
    seen = {event.key: event.count for event in profile.key_averages()}

    def calls(beginnings: tuple[str, ...]) -> int:
        return sum(number for name, number in seen.items() if name.startswith(beginnings))

    return Counts(calls(LAUNCHES), max(0, calls(WAITS) - _profilers_own_waits()))


@cache
def _profilers_own_waits() -> int:
    """The waits that the profiler adds when it stops, counted over no work at all."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        pass
    return sum(event.count for event in profile.key_averages() if event.key.startswith(WAITS))


def _dispatched(work: Callable[[], Any]) -> Counts:
    with _Reads() as reads, _Operations() as operations:
        work()
    return Counts(operations.number, reads.number)


class _Operations(TorchDispatchMode):
    """Counts operations that are not views."""

    number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += not func.is_view
        return func(*args, **(kwargs or {}))


class _Reads(TorchFunctionMode):
    """Counts the host's reads of values."""

    number = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += func in _READS
        return func(*args, **(kwargs or {}))
