"""Which method pays for a language model on this machine and these prompts: a race in which losers leave early.

All contestants decode the same prompts in turns, greedily and sampled by turns. Who is clearly slower than the best one
so far decodes no more prompts; plain decoding stays to the end, since the others are compared with it.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from mmspec.api.build import decoder_for
from mmspec.api.choice import known_name
from mmspec.api.tuned import Tuned, key_of
from mmspec.bench.generate import GenerateCall, PeerGenerate
from mmspec.bench.methods import decoder_arguments
from mmspec.bench.race import Contestant, Run, rotated
from mmspec.hosts.loading import PREFIX
from mmspec.kits.text.bench.contestants import OurMethod
from mmspec.registry.printable import first_line
from mmspec.report.cards import heads_of
from mmspec.report.result import PLAIN

TEMPERATURES = (0.0, 0.7)
CANDIDATES: Mapping[str, Mapping[str, Any]] = {
    PLAIN: {"method": PLAIN},
    "prompt-lookup, k=5": {"method": "prompt-lookup", "k": 5},
    "prompt-lookup, k=10": {"method": "prompt-lookup", "k": 10},
    "suffix, k=5": {"method": "suffix", "k": 5},
    "suffix, k=10, payoff": {"method": "suffix", "k": 10, "policy": "payoff"},
    "token-recycling, 8 nodes": {"method": "token-recycling", "k": 5, "nodes": 8},
    "token-recycling, 16 nodes": {"method": "token-recycling", "k": 5, "nodes": 16},
    "token-recycling, 32 nodes": {"method": "token-recycling", "k": 6, "nodes": 32},
}
"""What needs neither a head nor a draft model, with the arguments of `enable`."""
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "chains of 2": {"k": 2, "width": 1, "nodes": 2},
    "chains of 3": {"k": 3, "width": 1, "nodes": 3},
    "7 nodes": {"k": 3, "width": 3, "nodes": 7},
}
"""The drafts of heads."""
COMPILED = (PLAIN, "prompt-lookup, k=5", "token-recycling, 8 nodes")
"""Candidates that are tried compiled, too, where that is asked for."""
PEERS: Mapping[str, Mapping[str, Any]] = {
    "generate": {},
    "generate, prompt lookup 3": {"prompt_lookup_num_tokens": 3},
    "generate, prompt lookup 10": {"prompt_lookup_num_tokens": 10},
}
"""transformers' own ways, which are shown beside ours."""
PROMPTS = (
    "What is the capital of France, and what is it known for?",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring and an example.",
    "Summarise in two sentences: The printing press spread through Europe within decades. Books became cheap, so that "
    "more people learnt to read, and ideas that a few scholars had kept to themselves were argued about in taverns.",
    "Tom has 3 boxes of 12 pencils and gives 7 pencils away. How many pencils are left? Explain step by step.",
    "Translate into French: Good morning, my friends. Where is the next train station?",
    "Rewrite this with better names: def f(a, b):\n    c = []\n    for d in a:\n        if d not in b:\n"
    "            c.append(d)\n    return c",
)
"""Prompts where the user has no file."""
SURE = 3
"""Prompts after which a contestant may have to leave."""
SLOWER = 0.15
"""By how much slower than the best one a contestant is that leaves."""
GAIN = 0.03
"""A method that is not faster than plain decoding by this share does not pay."""


@dataclass
class Racer:
    """A contestant and what it did."""

    ways: Mapping[float, Contestant]  # by temperature
    stays: bool = False  # whether it decodes all prompts, however slow it is, and may not fail
    seconds: list[float] = field(default_factory=list)  # by prompt
    lengths: list[float] = field(default_factory=list)  # acceptance lengths
    failure: str = ""  # why it could not run

    @property
    def total(self) -> float:
        return sum(self.seconds)


def raced(racers: Mapping[str, Racer], tasks: Sequence[Any], enough: Callable[[], bool]) -> list[str]:
    """Let all contestants decode the tasks, until there are no more or it is `enough`; returns who is left.

    The first task is run once beforehand, uncounted; contestants that fail there leave. At least one task is counted.
    """
    left = list(racers)
    for name in left:
        try:
            for way in racers[name].ways.values():
                way(tasks[0])
        except Exception as error:  # another library's method may fail in any way
            if racers[name].stays:
                raise
            racers[name].failure = first_line(error)
    left = [name for name in left if not racers[name].failure]
    for number, task in enumerate(tasks):
        for name in rotated(left, number):
            racer = racers[name]
            run: Run = racer.ways[TEMPERATURES[number % len(TEMPERATURES)]](task)
            racer.seconds.append(run.seconds)
            racer.lengths += [] if run.report is None else [run.report.acceptance_length]
        if number + 1 >= SURE:
            best = min(racers[name].total for name in left)
            left = [n for n in left if racers[n].stays or racers[n].total <= (1 + SLOWER) * best]
        if enough():
            break
    return left


def contestants(model: Any, new: int, compiled: bool) -> tuple[dict[str, Racer], dict[str, Mapping[str, Any]]]:
    """Who races, and the arguments of `enable` of those that can be chosen; methods that do not fit are left out."""
    heads = heads_for(model)
    chosen = {**CANDIDATES, **heads}
    if compiled:
        chosen |= {f"{name}, compiled": {**chosen[name], "compile": True} for name in (*COMPILED, *heads)}
    racers: dict[str, Racer] = {}
    for name, how in list(chosen.items()):
        try:
            decoder_for(model, **decoder_arguments(how))
        except ValueError:
            if name == PLAIN:  # then nothing fits, and the error says why
                raise
            del chosen[name]
            continue
        ways = {t: OurMethod(GenerateCall(model, new, t, 0), how) for t in TEMPERATURES}
        racers[name] = Racer(ways, stays=name == PLAIN)
    for name, more in PEERS.items():
        racers[name] = Racer({t: PeerGenerate(GenerateCall(model, new, t, 0), more) for t in TEMPERATURES})
    return racers, chosen


def heads_for(model: Any) -> dict[str, Mapping[str, Any]]:
    """The shipped heads of a live model, each as chains and as small trees, with arguments of `enable`."""
    return {
        f"{head.method}, {shape}, {head.name}": {"method": head.method, "drafter": PREFIX + head.name, **how}
        for head in heads_of(known_name(model))
        for shape, how in SHAPES.items()
    }


def tune(
    model: Any, tasks: Sequence[Mapping[str, Tensor]], minutes: float, new: int, compiled: bool
) -> tuple[Tuned, dict[str, Racer]]:
    """The fastest method for a live model, and the whole race.

    Args:
        model: The model; methods are enabled on it by turns.
        tasks: Prompts of one row each.
        minutes: About how long it may take.
        new: Tokens of every output.
        compiled: Whether compiled rounds race, too.

    Raises:
        ValueError: The model cannot be decoded here.
    """
    racers, chosen = contestants(model, new, compiled)
    until = time.monotonic() + 60 * minutes
    left = raced(racers, tasks, lambda: time.monotonic() > until)
    best = min((name for name in left if name in chosen), key=lambda name: racers[name].total)
    speedup = racers[PLAIN].total / racers[best].total
    if speedup < 1 + GAIN:
        best, speedup = PLAIN, 1.0
    how = dict(chosen[best])
    own = {name: how.pop(name, None) for name in ("method", "drafter", "k", "policy")}
    made = Tuned(key_of(model), compile=how.pop("compile", False), options=how, speedup=round(speedup, 3), **own)
    return made, racers


def ranked(racers: Mapping[str, Racer]) -> Iterator[tuple[str, str, str, str]]:
    """Rows for a table, the fastest first: name, speed over plain decoding, acceptance length, prompts."""
    plain = racers[PLAIN].seconds

    def speed(racer: Racer) -> float:
        return sum(plain[: len(racer.seconds)]) / racer.total if racer.seconds else 0.0

    for name, racer in sorted(racers.items(), key=lambda each: -speed(each[1])):
        length = f"{sum(racer.lengths) / len(racer.lengths):.2f}" if racer.lengths else ""
        left = "" if len(racer.seconds) == len(plain) else ", then it left"
        yield name, f"{speed(racer):.2f} ×", length, racer.failure or f"{len(racer.seconds)}{left}"
