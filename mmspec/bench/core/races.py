"""Whole calls in turns: plain decoding, drafts that are accepted at a given rate, and transformers' own `generate`."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mmspec.bench.core.sections import Clock, run_section
from mmspec.bench.core.steps import StaticTree
from mmspec.bench.core.subject import VARIANTS, Subject
from mmspec.bench.generate import CompiledGenerate, GenerateCall, PeerGenerate, compiled
from mmspec.bench.race import Contestant, Run, relay
from mmspec.bench.timing import synchronize
from mmspec.core.decoder import Decoder
from mmspec.core.rules.synthetic import Synthetic, SyntheticOptions
from mmspec.core.warp import Warp

DRAFTED = (7, 15)
"""Units of the drafted chains: with the root, 8 and 16 nodes."""
RATE = 0.8
"""Chance of every drafted unit to be accepted, if the one before it was."""
LOOKUP = 10
"""`prompt_lookup_num_tokens` of transformers' prompt lookup: its documentation's value."""
COMPILING = 4.0
"""Share of time for the warm-up of a contestant that compiles; that of the others is 1."""
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
        synchronize(self.device)
        began = time.perf_counter()
        output = self.decoder.generate(prompt, self.new, warp=Warp(sample=False))
        synchronize(self.device)
        return Run(time.perf_counter() - began, output.units, output.report)


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
        for variant in VARIANTS:
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
