"""The benchmark of the core: every shape gets its share of the time, and so does every section of a shape.

The last section races whole calls in turns: plain decoding, drafts that are accepted at a given rate, and transformers'
own `generate`.
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from mmspec.bench.generate import CompiledGenerate, GenerateCall, PeerGenerate, compiled
from mmspec.bench.race import Contestant, Run, relay
from mmspec.bench.timing import called, describe, versions
from mmspec.core.decoder import Decoder
from mmspec.core.rules.synthetic import Synthetic, SyntheticOptions
from mmspec.core.warp import Warp
from mmspec_text.plan.work import Machine
from tools.bench.core.machine import launch_seconds, measure_machine
from tools.bench.core.sections import Clock, Lines, run_section
from tools.bench.core.shape import Shape
from tools.bench.core.steps import StaticTree, passes, rounds
from tools.bench.core.subject import SMALL, VARIANTS, Sizes, Subject

SECTIONS = {"make": 2.0, "passes": 3.0, "rounds": 3.0, "race": 4.0}
"""The sections of a shape, in their order, with their shares of its time."""
STEPS = {"passes": passes, "rounds": rounds}
MACHINE_SHARE = 0.1
"""The largest share of the time for the machine's limits."""
DRAFTED = (7, 15)
"""Units of the drafted chains: with the root, 8 and 16 nodes."""
RATE = 0.8
"""Chance of every drafted unit to be accepted, if the one before it was."""
LOOKUP = 10
"""`prompt_lookup_num_tokens` of transformers' prompt lookup: its documentation's value."""
COMPILING = 4.0
"""Share of time for the warm-up of a contestant that compiles; the others have a share of 1."""
TURNS = "turns"
TURNING = 2.0
"""Share of time for all contestants in turns."""


@dataclass
class Call:
    """A call of our loop, greedy."""

    decoder: Decoder
    new: int  # units to emit
    device: str  # where its model is

    def __call__(self, prompt: Any) -> Run:
        seconds, output = called(lambda: self.decoder.generate(prompt, self.new, warp=Warp(sample=False)), self.device)
        return Run(seconds, output.units, output.report)


@dataclass
class Race:
    subject: Subject  # the shape
    ready: dict[str, Contestant] = field(default_factory=dict)  # contestants that came through their warm-up
    repeats: int = 0  # repeats so far

    def run(self, clock: Clock) -> None:
        """Warm up every contestant in a section of its own; those that could be warmed up run in turns.

        They run in turns before those that compile are warmed up, and again with these: compilation may take all time.
        """
        if self.subject.workload.truth is not None:  # its units come from a player, whom no contestant waits for
            return
        ways = self.contestants()
        slow = [name for name in ways if "compiled" in name]
        quick = dict.fromkeys((name for name in ways if name not in slow), 1.0)
        last = {**dict.fromkeys(slow, COMPILING), TURNS: TURNING} if slow else {}
        for name, own in clock.shares({**quick, f"first {TURNS}": TURNING, **last}):
            about = {"shape": self.subject.shape.name}
            if name.endswith(TURNS):
                run_section(self.subject.lines, "race", own.left(), self._turns, **about)
            else:
                warm_up = partial(self._warm_up, name, ways[name])
                run_section(self.subject.lines, "race", own.left(), warm_up, **about, contestant=name)

    def contestants(self) -> Mapping[str, Callable[[], Contestant]]:
        found: dict[str, Callable[[], Contestant]] = {}
        for variant in self.subject.variants:
            found[f"plain, {variant}"] = partial(self._ours, variant, 0)
            for drafted in DRAFTED:
                found[f"synthetic, {drafted + 1} nodes, {variant}"] = partial(self._ours, variant, drafted)
        if self.subject.shape.generates:
            call = GenerateCall(self.subject.workload.model, self.subject.sizes.new, 0.0, 0)
            found["generate"] = partial(_stock, PeerGenerate(call))
            found["generate, prompt lookup"] = partial(_stock, PeerGenerate(call, {"prompt_lookup_num_tokens": LOOKUP}))
            if self.subject.sizes.compiles:
                found["generate, compiled"] = partial(_stock, compiled(call))
        return found

    def _ours(self, variant: str, drafted: int) -> Contestant:
        """Plain decoding, or chains of so many units that are accepted at `RATE`."""
        parts = (StaticTree(drafted, drafted), Synthetic(SyntheticOptions(rate=RATE))) if drafted else ()
        decoder = self.subject.decoder(*parts, k=drafted, **VARIANTS[variant])
        return Call(decoder, self.subject.sizes.new, str(self.subject.device))

    def _prompt(self) -> Any:
        return self.subject.workload.prompt(1, self.subject.sizes.contexts[0])

    def _warm_up(self, name: str, make: Callable[[], Contestant]) -> None:
        way = make()
        way(self._prompt())
        self.ready[name] = way

    def _turns(self) -> None:
        names = list(self.ready)
        for _ in range(self.subject.sizes.races if names else 0):
            first, repeat = self.repeats % len(names), self.repeats
            self.repeats += 1
            order = {name: self.ready[name] for name in names[first:] + names[:first]}
            for name, track in relay(order, [[self._prompt()]], []).items():
                (run,) = track.every
                each = run.seconds / run.emitted
                length = None if run.report is None else round(run.report.acceptance_length, 3)
                figures = {"ms_per_unit": round(1e3 * each, 4), "acceptance_length": length}
                self.subject.say("race", contestant=name, repeat=repeat, **figures)


def _stock(way: PeerGenerate | CompiledGenerate) -> Contestant:
    """A contestant that is given ids without padding."""
    return lambda ids: way({"input_ids": ids, "attention_mask": ids.new_ones(ids.shape)})


def run(shapes: Sequence[Shape], device: torch.device, seconds: float, lines: Lines) -> None:
    """Measure shapes, one after the other; what fails or does not fit the time is a line.

    On CUDA they run in bfloat16 and in full size, elsewhere stand-ins in float32.
    """
    small = device.type != "cuda"
    dtype = torch.float32 if small else torch.bfloat16
    clock, limits = Clock.of(seconds), list[Machine]()
    about = {"device": describe(str(device)), "dtype": str(dtype).removeprefix("torch."), "versions": versions()}

    def machine() -> None:
        found = measure_machine(device, dtype, small)
        limits.append(found)
        rates = {"bytes_per_second": found.bandwidth, "operations_per_second": found.arithmetic}
        lines.say("machine", **about, **rates, launch_us=round(1e6 * launch_seconds(device), 3), small=small)

    def make(shape: Shape) -> Subject:
        sizes = (SMALL if small else Sizes()).of(shape)
        subject = Subject(shape, shape.workload(device, dtype, small), sizes, limits[0], device, lines)
        work = subject.work
        subject.say("shape", bytes=work.shared + work.routed, operations_per_unit=work.operations)
        return subject

    with torch.no_grad():
        run_section(lines, "machine", MACHINE_SHARE * clock.left(), machine)
        by_name = {shape.name: shape for shape in shapes}
        for name, own in clock.shares(dict.fromkeys(by_name, 1.0)) if limits else ():
            measure(name, partial(make, by_name[name]), lines, own)
            free(device)
    lines.say("done", deadline=seconds)


def free(device: torch.device) -> None:
    """Give the memory of a shape back: its models, and graphs that were compiled for them."""
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def measure(name: str, make: Callable[[], Subject], lines: Lines, clock: Clock) -> None:
    """Measure one shape: make it, then its passes, rounds and races."""
    made: list[Subject] = []
    for section, own in clock.shares(SECTIONS):
        if section == "make":
            run_section(lines, section, own.left(), lambda: made.append(make()), shape=name)
        elif made and section == "race":  # it has sections of its own
            Race(made[0]).run(own)
        elif made:
            run_section(lines, section, own.left(), partial(STEPS[section], made[0]), shape=name)
