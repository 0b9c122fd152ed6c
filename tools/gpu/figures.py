"""Milliseconds a round on Llamas of 1 B and 8 B weights (random), against the bytes that a pass must read.

What compiles is compiled first, while other steps test; all is timed when `--go` exists. What compiles nothing is made
where it is timed, so that its first call is a user's. One process a size, since compiling takes most of the time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from mmspec.api.build import decoder_for
from mmspec.bench.generate import GenerateCall, PeerGenerate, compiled
from mmspec.bench.timing import called
from mmspec.core.decoder import Decoder
from mmspec.core.protocols import Target
from mmspec.core.rules.synthetic import Synthetic, SyntheticOptions
from mmspec.core.state import State
from tools.bench.core.machine import measure_machine
from tools.bench.core.steps import DEPTH, StaticTree, count
from tools.gpu.common import GREEDY, HALF, MODES, Step, rooted

SIZES = ("llama-1b", "llama-8b")
WAYS = {"plain": 1, "chain of 16 nodes": 16, "tree of 64 nodes": 64}
RATE, CALLS = 0.8, 4
"""Chance of a drafted unit to be accepted; calls of every contestant, of which the first one is told apart."""

Way = Callable[[], dict[str, Any]]


def lengths(step: Step) -> tuple[int, int]:
    """Units of context, and units to emit."""
    return (32, 12) if step.dry else (1024, 128)


def graph_ms(step: Step, state: State) -> dict[str, float]:
    """The time of the round's graph alone, if it was recorded as one."""
    captured = vars(state.player).get("round")
    run = None if captured is None else vars(captured).get("_run")
    graph = None if run is None else vars(run).get("_graph")
    return {} if graph is None else {"graph_ms": step.device_ms(graph.replay, 20)}


@dataclass
class Ours:
    """Whole calls of our loop."""

    step: Step
    decoder: Decoder
    given: Any  # the prompt
    new: int  # units to emit

    def __call__(self) -> dict[str, Any]:
        def work() -> State:
            *_, state = self.decoder.rounds(self.given, self.new, watched=False, warp=GREEDY)
            return state

        seconds, state = called(work, str(self.step.device))
        report = state.report
        prefill = report.seconds["prefill"]
        spent = 1e3 * (seconds - prefill)
        phases = {k: round(1e3 * s / report.rounds, 4) for k, s in report.seconds.items() if k != "prefill"}
        return {
            "seconds": round(seconds, 3),
            "ms_per_round": round(spent / report.rounds, 4),
            "ms_per_unit": round(spent / (self.new - 1), 4),
            "rounds": report.rounds,
            "acceptance_length": round(report.acceptance_length, 3),
            "phases_ms": phases,
            "captured": report.compiled or report.recorded or report.recorded,
            "prefill_ms": round(1e3 * prefill, 1),
            **graph_ms(self.step, state),
        }


@dataclass
class Theirs:
    """transformers' own `generate`; the time of a short call is subtracted, so that the prompt does not count."""

    model: Any
    given: Mapping[str, Any]  # ids and mask
    new: int  # tokens of the long call
    kind: Callable[[GenerateCall], Any]  # eager, or compiled with a static cache

    def __call__(self) -> dict[str, Any]:
        few, many = (self.kind(GenerateCall(self.model, n, 0.0, 0))(self.given) for n in (self.new // 4, self.new))
        each = (many.seconds - few.seconds) / (many.emitted - few.emitted)
        return {"seconds": round(few.seconds + many.seconds, 3), "ms_per_unit": round(1e3 * each, 4)}


def contestants(step: Step, model: Any) -> dict[str, Callable[[], Way]]:
    """What makes every contestant, by its name and mode: the default first."""
    target, (context, new) = decoder_for(model, "plain").target, lengths(step)
    given = step.prompt(1, context, model.config.vocab_size)

    def ours(nodes: int, mode: str) -> Way:
        tree = StaticTree(nodes - 1, DEPTH if nodes > 16 else nodes - 1)
        parts: Sequence[Any] = (tree, Synthetic(SyntheticOptions(rate=RATE))) if nodes > 1 else ()
        decoder = Decoder(target, *parts, k=tree.depth if parts else 0, shape="one", compile=MODES[mode])
        return Ours(step, decoder, given["input_ids"], new)

    found: dict[str, Callable[[], Way]] = {}
    for mode in step.modes():
        for name, nodes in WAYS.items():
            found[f"{name}, {mode}"] = partial(ours, nodes, mode)
        if mode != "default":
            kind = compiled if mode == "compiled" and not step.dry else PeerGenerate
            found[f"generate, {mode}"] = partial(Theirs, model, given, new, kind)
    return found


@dataclass
class Timing:
    """Times contestants, one process at a time, against the bytes that a pass reads."""

    step: Step
    name: str  # of the model
    read: float  # bytes
    floor: float = 0.0  # milliseconds
    quick: dict[str, Callable[[], Way]] = field(default_factory=dict)  # contestants that are yet to be made
    ready: dict[str, tuple[Way, dict[str, Any]]] = field(default_factory=dict)  # those that are compiled; first calls

    def prepare(self, label: str, make: Callable[[], Way]) -> None:
        """Make a contestant and let it compile."""
        way = make()
        self.ready[label] = way, way()
        self.step.say("prepare", model=self.name, contestant=label, first_call=self.ready[label][1])

    def __call__(self) -> None:
        """Time all that can be timed now."""
        with self.step.alone():
            if not self.floor:
                self._measure()
            while self.quick or self.ready:
                todo: Any = self.quick or self.ready
                label, what = next(iter(todo.items()))
                del todo[label]
                self.step.section("time", partial(self._time, label, what), 3, model=self.name, contestant=label)

    def _measure(self) -> None:
        bandwidth = measure_machine(self.step.device, HALF, self.step.dry).bandwidth
        self.floor = 1e3 * self.read / bandwidth
        name = "cpu" if self.step.dry else torch.cuda.get_device_name()
        self.step.say("machine", copy_TBs=round(bandwidth / 1e12, 3), device=name)

    def _time(self, label: str, what: Any) -> None:
        memory, calls = {}, list[dict[str, Any]]()
        if isinstance(what, tuple):
            way, first = what
            calls.append(first)
        else:
            before = 0 if self.step.dry else torch.cuda.memory_reserved()
            way = what()
        wanted = 2 if self.step.dry or "eager" in label else CALLS  # the slowest take the time of all others
        calls += [way() for _ in range(wanted - len(calls))]
        if not self.step.dry:
            memory["peak_GB"] = round(torch.cuda.max_memory_allocated() / 1e9, 3)
            torch.cuda.reset_peak_memory_stats()
            if not isinstance(what, tuple):
                memory["reserved_more_GB"] = round((torch.cuda.memory_reserved() - before) / 1e9, 3)
        best = min(calls[1:], key=lambda call: call["ms_per_unit"])
        each = best.get("ms_per_round", best["ms_per_unit"])
        if "graph_ms" in best:
            memory["outside_graph_ms"] = round(each - best["graph_ms"], 4)
        first_calls = {"first_call_seconds": calls[0]["seconds"], "second_call_seconds": calls[1]["seconds"]}
        floor = {"floor_ms": round(self.floor, 4), "times_floor": round(each / self.floor, 3)}
        every = [call["ms_per_unit"] for call in calls[1:]]
        self.step.say("time", model=self.name, contestant=label, **best, **first_calls, **floor, **memory, every=every)


def passes(step: Step, name: str, target: Target, given: Any, sizes: Sequence[int] = (1, 16, 64)) -> None:
    """Bare eager passes: the gap to the bytes, and the launches."""
    whole: Any = target
    started = whole.start_fixed(given, 1, max(sizes))
    root = torch.zeros(1, dtype=torch.int64, device=step.device)
    for nodes in sizes:
        draft = rooted(root, [] if nodes == 1 else list(StaticTree(nodes - 1, DEPTH).parents))
        work = partial(target.verify, started.cache, draft)
        ms, launches = step.wall_ms(work, 10), count(work, step.device).launches
        step.say("pass", model=name, nodes=nodes, eager_ms=ms, launches=launches)


def measure(step: Step, name: str) -> None:
    workload = step.workload(name)
    timing = Timing(step, name, workload.work().shared)
    made = contestants(step, workload.model)
    timing.quick = {label: make for label, make in made.items() if "compiled" not in label}
    for label in (label for label in made if "compiled" in label):
        work = partial(timing.prepare, label, made[label])
        step.section("prepare", work, 60, keep=25, model=name, contestant=label)
        if step.go is None or step.go.exists():
            timing()
    timing()
    given = workload.prompt(1, lengths(step)[0])

    def bare() -> None:
        with step.alone():
            passes(step, name, decoder_for(workload.model, "plain").target, given)

    step.section("passes", bare, 6, model=name)


def main() -> None:
    step = Step("figures")
    for name in step.chosen(SIZES):
        step.section("make", partial(measure, step, name), 15, model=name)
    step.say("done", model=step.chosen(SIZES))


if __name__ == "__main__":
    with torch.no_grad():
        main()
