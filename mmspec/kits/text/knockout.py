"""A race of many ways to decode, in a given time: those that clearly lose leave early, and ranges say what is known.

In a round all ways decode all prompts by turns, greedily and sampled by turns; outputs are as short as the time asks.
The first round chooses a few, and what these do in later rounds decides: who is the fastest of many by some seconds
owes a part of it to chance, and only other seconds tell how much.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mmspec.bench.race import Contestant, Run, rotated
from mmspec.registry.printable import first_line

TEMPERATURES = (0.0, 0.7)
LEAST = 16  # tokens of the shortest outputs
SHARE = 0.4  # the share of the time that the first round may take
SURE, SLOWER = 3, 0.15
"""Prompts after which a way may have to leave, and by how much slower than the fastest one it is then, at least."""
FINALISTS = 3  # the number of ways that go on after the first round, beside those that stay
JUDGED, MOST = 2, 6  # the least and the most rounds that decide
EVERY = 20.0  # seconds without a line of progress
STUDENT = (63.66, 9.92, 5.84, 4.60, 4.03, 3.71, 3.50, 3.36, 3.25, 3.17)
"""Quantiles of Student's t that leave 0.5 % on either side, for 1 degree of freedom and more."""


class Range(NamedTuple):
    """The speed of a way as a multiple of another one's, and the 99 % interval."""

    low: float
    middle: float
    high: float

    def __str__(self) -> str:
        inside = f" ({self.low:.2f} to {self.high:.2f})" if math.isfinite(self.high) else ""
        return f"{self.middle:.2f} ×{inside}"


def faster(seconds: Sequence[float], base: Sequence[float], prompts: int) -> Range:
    """The speed of a way as a multiple of the base's: both took these seconds for the same runs, round after round.

    A prompt counts once, by the geometric mean of its rounds: the interval is over prompts. Fewer than `SURE` tell
    nothing by themselves; then it is over runs.
    """
    logs = [math.log(b / a) for a, b in zip(seconds, base, strict=False)]
    by_prompt = [statistics.fmean(logs[number::prompts]) for number in range(min(prompts, len(logs)))]
    values = by_prompt if len(by_prompt) >= SURE else logs
    free, middle = len(values) - 1, statistics.fmean(values)
    if not free:
        return Range(0.0, math.exp(middle), math.inf)
    t = STUDENT[free - 1] if free <= len(STUDENT) else 2.58 + 5.6 / free
    wide = t * statistics.stdev(values) / math.sqrt(len(values))
    return Range(math.exp(middle - wide), math.exp(middle), math.exp(middle + wide))


@dataclass
class Racer:
    """A way to decode, and what it did."""

    way: Callable[[float, int], Contestant]  # of a temperature and a number of new tokens
    stays: bool = False  # whether it decodes all prompts, however slow it is, and may not fail
    compiles: bool = False  # whether first runs take long
    seconds: list[float] = field(default_factory=list)  # by round and prompt
    lengths: list[float] = field(default_factory=list)  # acceptance lengths
    failure: str = ""  # why it could not run

    @property
    def total(self) -> float:
        return sum(self.seconds)


@dataclass
class Race:
    """Racers by name, and how far they came."""

    racers: Mapping[str, Racer]
    tasks: Sequence[Any]  # prompts
    groups: Sequence[Sequence[str]]  # names: of the first group so many as `FINALISTS` go on, of others the fastest
    say: Callable[[str], None]  # receives lines of progress
    clock: Callable[[], float] = time.monotonic
    left: list[str] = field(default_factory=list)  # who is still in it
    rounds: int = 0  # whole rounds behind the first one
    new: int = LEAST  # tokens of an output
    needed: float = 0.0  # seconds that a first round of the shortest outputs takes, about
    _said: float = 0.0

    def run(self, minutes: float, most: int) -> None:
        """Race for about so many minutes, with outputs of `most` tokens; `rounds` is 0 if the first one took longer."""
        self._said = self.clock()
        until = self._said + 60 * minutes
        self.left = list(self.racers)
        self.say(f"first runs of {len(self.left)} ways, which are not counted")
        self._warm_up(until)
        if self.clock() >= until:
            return
        self.new = max(LEAST, min(most, int(LEAST * SHARE * (until - self.clock()) / max(self.needed, 1e-9))))
        self.say(f"{len(self.left)} ways, {len(self.tasks)} prompts, outputs of {self.new} tokens")
        for name in self.left:
            if self.racers[name].compiles:
                self._first_runs(name, self.tasks, self.new)
        if not self._round(until):
            return
        self._choose()
        while self.rounds < JUDGED or (self.rounds < MOST and self.clock() < until):
            self._round(math.inf)
            self.rounds += 1
            self.say(f"round {self.rounds} of those that are left: {', '.join(self.left)}")

    def over(self, name: str, base: str) -> Range:
        """The speed of a racer as a multiple of the base's: where both are left, by the rounds that decide."""
        first = len(self.tasks) if self.rounds and {name, base} <= set(self.left) else 0
        own, other = (self.racers[each].seconds[first:] for each in (name, base))
        return faster(own, other[: len(own)], len(self.tasks))

    def clearly(self, name: str, base: str, gain: float) -> bool:
        """True if a racer is faster than the base, by `gain` and more, beyond doubt: in every round that decides."""
        found, size = self.over(name, base), len(self.tasks)
        rounds = range(size, size * (1 + self.rounds), size)
        sums = ([sum(self.racers[each].seconds[at : at + size]) for at in rounds] for each in (name, base))
        return found.low > 1 and found.middle >= 1 + gain and all(own < other for own, other in zip(*sums, strict=True))

    def _warm_up(self, until: float) -> None:
        """First runs, which are not counted, of the shortest outputs; ways that fail leave."""
        for number, name in enumerate(list(self.left)):
            try:
                last = self._first_runs(name, self.tasks[:1], LEAST)
            except Exception as error:  # another library's method may fail in any way
                if self.racers[name].stays:
                    raise
                self.racers[name].failure = first_line(error)
                self.left.remove(name)
                continue
            self.needed += last * len(self.tasks)
            self._progress(f"{number + 1} of {len(self.racers)} ways have run once")
            if self.clock() >= until:
                self.needed *= len(self.racers) / (number + 1)
                return

    def _first_runs(self, name: str, tasks: Sequence[Any], new: int) -> float:
        """Runs of a way that are not counted; returns the seconds of the last one, by the clock."""
        began = self.clock()
        for task in tasks:
            for temperature in TEMPERATURES:
                began = self.clock()
                self.racers[name].way(temperature, new)(task)
        return self.clock() - began

    def _round(self, until: float) -> bool:
        """Let all that are left decode all prompts; returns whether there was time for all."""
        for number, task in enumerate(self.tasks):
            if self.clock() >= until:
                return False
            turn = number + len(self.racers[self.left[0]].seconds) // len(self.tasks)
            for name in rotated(self.left, turn):
                racer = self.racers[name]
                run: Run = racer.way(TEMPERATURES[turn % len(TEMPERATURES)], self.new)(task)
                racer.seconds.append(run.seconds)
                racer.lengths += [] if run.report is None else [run.report.acceptance_length]
                self._progress(f"{number + 1} of {len(self.tasks)} prompts, {len(self.left)} ways left")
            if until < math.inf and number + 1 >= SURE:
                self._leave()
        return True

    def _leave(self) -> None:
        """Those that are clearly slower than the fastest one leave; of the first group, than the fastest of it."""
        ours = [name for name in self.left if name in self.groups[0]]
        best, own = (min(names, key=lambda name: self.racers[name].total) for names in (self.left, ours))
        found = {name: self.over(name, own if name in ours else best) for name in self.left}
        slow = {name for name, each in found.items() if each.high < 1 and each.middle < 1 / (1 + SLOWER)}
        self.left = [name for name in self.left if name not in slow or self.racers[name].stays]

    def _choose(self) -> None:
        """The fastest ones of the first round go on."""
        go_on = {name for name in self.left if self.racers[name].stays}
        for number, group in enumerate(self.groups):
            there = [name for name in self.left if name in group and name not in go_on]
            go_on |= set(sorted(there, key=lambda name: self.racers[name].total)[: 1 if number else FINALISTS])
        self.left = [name for name in self.left if name in go_on]
        self.say(f"the fastest ones go on: {', '.join(self.left)}")

    def _progress(self, line: str) -> None:
        if self.clock() - self._said >= EVERY:
            self._said = self.clock()
            self.say(line)
