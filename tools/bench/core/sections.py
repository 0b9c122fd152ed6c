"""Sections with deadlines, and their figures: one line of JSON each, written and flushed when it is known."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import IO, Any

import torch

from mmspec.core.out_of_memory import out_of_memory
from mmspec.registry.printable import one_line

AGAIN = 1.0
"""Seconds between two rings of an alarm."""


class TimeUp(BaseException):
    """A section's time is over. No `Exception`, so that no handler on the way takes it for a fault of its own."""


@dataclass
class Lines:
    file: IO[str] | None = None  # where each line is written at once; None: nowhere
    show: Callable[[dict[str, Any]], None] = lambda line: None  # called with each line
    found: list[dict[str, Any]] = field(default_factory=list)  # all lines so far
    _began: float = field(default_factory=time.monotonic)

    def say(self, section: str, **figures: Any) -> None:
        """Add a line: the second of the run, the section, its figures."""
        line = {"t": round(time.monotonic() - self._began, 1), "section": section, **figures}
        self.found.append(line)
        if self.file is not None:
            self.file.write(json.dumps(line, allow_nan=False) + "\n")
            self.file.flush()
        self.show(line)

    def of(self, section: str) -> list[dict[str, Any]]:
        return [line for line in self.found if line["section"] == section]


def run_section(lines: Lines, section: str, seconds: float, work: Callable[[], None], **about: Any) -> None:
    """Run a section until it ends or its time is over. What fails is a line, and harms no other section.

    `about` says in its line what has failed.
    """
    if seconds <= 0:
        lines.say(section, **about, stopped="no time left")
        return
    try:
        with alarm(seconds):
            work()
    except TimeUp:
        lines.say(section, **about, stopped=f"its {seconds:.1f} s are over")
    except Exception as error:
        lines.say(section, **about, failed=f"{type(error).__name__}: {one_line(error)}"[:300])
        if out_of_memory(error) and torch.cuda.is_available():
            torch.cuda.empty_cache()


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise `TimeUp` in the block after so many seconds; a call into compiled code is stopped when it returns.

    It rings again while the block goes on, because code that may not raise (a finaliser, say) drops the first one.
    Outside of the main thread, and where the system has no such timer, the block is not stopped. Alarms do not nest.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    running = True

    def ring(number: int, frame: FrameType | None) -> None:
        if running:
            raise TimeUp

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        try:
            yield
        finally:
            running = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True)
class Clock:
    """The time that is left of a deadline, shared among the sections that are still to run."""

    ends: float  # the deadline, on `now`'s clock
    now: Callable[[], float] = time.monotonic  # the clock

    @classmethod
    def of(cls, seconds: float) -> "Clock":
        return cls(time.monotonic() + seconds)

    def left(self) -> float:
        return self.ends - self.now()

    def shares(self, weights: Mapping[str, float]) -> Iterator[tuple[str, "Clock"]]:
        """Every section with its deadline: its weight's share of what is left when it begins.

        A section that ends early leaves its time to those behind it.
        """
        todo = dict(weights)
        for name, weight in weights.items():
            share = weight / sum(todo.values())
            del todo[name]
            yield name, Clock(self.now() + share * max(0.0, self.left()), self.now)
