"""Online learning: a drafter is trained between calls on the rows of the calls that it drafted for.

Online speculative decoding (Liu et al., arXiv 2310.07177). Of every row the tokens are kept, and at which positions a
draft was corrected. Between calls, never while one is decoded, the drafter takes a few optimiser steps on kept rows:
what the target says of them is computed again then, so that a kept token costs two numbers and no hidden states.

A position is corrected if something was drafted there and the target emitted another unit. The bonus unit behind a
draft that was accepted as a whole is no correction, nor is the unit at which a row was cut off. The loss at a corrected
unit is that of the distribution in front of it, from which the wrong unit was drafted.

Lessons run before `generate` returns, or in a thread of their own while no call is decoded (`idle`): a call that comes
waits for the step that is under way, and the others go on behind it. Where prompts are of several topics, each has a
drafter of its own, which begins as the drafter was and learns from its own rows (`route`).

Nothing of the target is changed, and no random number of the user's is drawn. So under an invariant rule learning
changes no unit of any output; under a lossless one drafts carry the distribution that they were really drawn from.
"""

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from mmspec.core.capabilities import Learns, Lesson
from mmspec.core.distributions import take_nodes
from mmspec.core.state import State
from mmspec.core.types import Step
from mmspec.registry.numbers import numbers, whole
from mmspec.registry.suggest import unknown
from mmspec.registry.switches import strict
from mmspec.registry.warn import warn

Positions = Literal["corrected", "emitted"]
CLIP = 1.0
"""The largest norm of a step's gradient."""


@dataclass(frozen=True)
class Learning:
    """Settings of a drafter that learns between calls.

    Attributes:
        every: Calls between lessons.
        steps: Optimiser steps of a lesson.
        rate: Learning rate of AdamW, constant; the authors' online runs have the same. A trained drafter forgets at a
            larger one (1e-3) before it learns.
        batch: Rows of a step: the latest one, and others drawn from those that are kept.
        capacity: Rows that are kept; the oldest are dropped.
        length: Units of a row that are kept, the latest ones.
        positions: Which units count: those that corrected a draft, or all that were emitted.
        loss: A loss of the training kit (`mmspec.training.losses`), between the target's distribution and the draft's.
        depth: Units of a draft along which a head is unrolled.
        idle: Whether lessons run in a thread while the model idles, and calls return without them. Under a lossless
            rule texts would depend on when, so it is for rules under which drafts change no text.
        route: From a prompt's units, `[unit]` int64, to the name of its topic (`mmspec.Topics`); of a batch, the
            first row's prompt. None: one drafter for all.

    Raises:
        ValueError: A number is out of its range, or there are no such positions.
    """

    every: int = 1
    steps: int = 1
    rate: float = 1e-5
    batch: int = 2
    capacity: int = 64
    length: int = 256
    positions: Positions = "corrected"
    loss: str = "kl"
    depth: int = 4
    idle: bool = False
    route: Callable[[Tensor], str] | None = None

    def __post_init__(self) -> None:
        for name in ("every", "steps", "batch", "capacity", "depth"):
            if whole(name, self.__dict__[name]) < 1:
                raise ValueError(f"{name} must be at least 1, got 0")
        if whole("length", self.length) < self.depth + 2:
            raise ValueError(f"length must be at least depth + 2 = {self.depth + 2}, got {self.length}")
        numbers(rate=self.rate)
        if not 0 < self.rate < 1:
            raise ValueError(f"rate must be above 0 and below 1, got {self.rate!r}")
        if self.positions not in get_args(Positions):
            raise ValueError(unknown("positions", str(self.positions), get_args(Positions)))


@dataclass(frozen=True)
class Row:
    """A row of a call: its latest units, and for each whether it counts."""

    units: tuple[int, ...]
    counted: tuple[bool, ...]


def was_corrected(step: Step) -> Tensor:
    """True if the last unit that a round emitted in a row took the place of a drafted one: `[batch]` bool."""
    draft, verdict = step.draft, step.verdict
    path = nn.functional.pad(verdict.path.clamp(min=0), (1, 0))  # the root first
    last = take_nodes(path, verdict.length[:, None])
    drafted = ((draft.index.parent == last) & draft.valid).any(1)
    return drafted & (step.count == verdict.length + 1)  # a row that was cut off ends with an accepted unit


class Notes:
    """The notes of one call; it observes rounds, and asks the device for nothing before the call is over."""

    def __init__(self, learning: Learning) -> None:
        self._learning = learning
        self._rounds: list[Tensor] = []

    def step(self, state: State) -> None:
        """Note a round: how far every row is, and whether its last unit is a correction."""
        assert state.step is not None
        self._rounds.append(torch.stack([state.emitted, was_corrected(state.step).long()]))

    def rows(self, state: State) -> list[Row]:
        """The rows of a call that is over; without those in which nothing counts, or too little is known."""
        found, first = [], state.prompt_length
        corrections = torch.stack(self._rounds).tolist()
        history: list[list[int]] = state.history.tolist()
        for row, (emitted, pads) in enumerate(zip(state.host.emitted, state.host.pads, strict=True)):
            end = first + emitted
            if self._learning.positions == "corrected":
                places = {first + at[row] - 1 for at, corrected in corrections if corrected[row]}
            else:
                places = set(range(first, end))
            begin = max(pads, end - self._learning.length)
            counted = tuple(place in places for place in range(begin, end))
            if end - begin >= self._learning.depth + 2 and any(counted):
                found.append(Row(tuple(history[row][begin:end]), counted))
        return found


class Learner:
    """The rows that are kept of several calls, and the lessons on them."""

    def __init__(self, drafter: Learns, learning: Learning) -> None:
        self.drafter, self.learning = drafter, learning
        self.kept: deque[Row] = deque(maxlen=learning.capacity)  # the oldest first
        self.steps, self.seconds = 0, 0.0  # of the optimiser, and of all lessons
        self.stopped = False  # whether learning ended early, after a loss that was not finite or another fault
        self.loss: float | None = None  # that of the latest step; None before the first
        self._calls = 0
        self._draws = random.Random(0)
        # Of lessons; of a step in a thread; and of the number of calls
        self._lock, self._turn, self._counting = threading.Lock(), threading.Condition(), threading.Lock()
        self._running, self._owed = 0, 0  # calls that run, and steps of lessons that are due while none does
        self._thread: threading.Thread | None = None
        # What topics have that are not in use: their rows, and the next two; and the weights at the beginning
        self._shelf: dict[str | None, tuple[deque[Row], list[Tensor], torch.optim.Optimizer | None]] = {}
        self._topic: str | None = None
        self._first: list[Tensor] = []
        # Steps are taken on copies in float32: in half precision small ones would be lost in rounding.
        self._copies: list[Tensor] = []
        self._optimizer: torch.optim.Optimizer | None = None

    def __getstate__(self) -> dict[str, Any]:
        threads = ("lesson", "_lock", "_turn", "_counting", "_thread")
        kept = {name: value for name, value in vars(self).items() if name not in threads}
        return kept | {"_running": 0, "_owed": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        locks = {"_lock": threading.Lock(), "_turn": threading.Condition(), "_counting": threading.Lock()}
        vars(self).update(state, **locks, _thread=None)

    @cached_property
    def lesson(self) -> Lesson:
        """The drafter's lesson; a copy of the learner makes its own.

        Raises:
            ValueError: The drafter cannot learn for this target.
        """
        return self.drafter.lesson(self.learning.loss, self.learning.depth)

    def notes(self) -> Notes | None:
        """Notes for a new call; None after a fault."""
        return None if self.stopped else Notes(self.learning)

    def keep(self, rows: Sequence[Row]) -> None:
        """Keep the rows of a call that ended well; calls that raise leave nothing."""
        self.kept.extend(rows)
        self._calls += 1

    @contextmanager
    def call(self) -> Iterator[None]:
        """A block in which no lesson runs in a thread: a call of the model."""
        with self._counting:  # first, so that no other step begins
            self._running += 1
        try:
            with self._turn:  # a step holds it
                pass
            yield
        finally:
            with self._counting:
                self._running -= 1
            with self._turn:
                self._turn.notify_all()

    def turn_to(self, units: Tensor) -> None:
        """Let the drafter be that of a prompt's topic, `[unit]` int64, inside of `call`; where another call or a lesson
        runs, it stays as it is. Steps that are due for another topic are not taken.
        """
        route = self.learning.route
        if route is None or self._running > 1 or self.stopped or not self._lock.acquire(blocking=False):
            return
        try:
            self._change(route(units))
        finally:
            self._lock.release()

    def _change(self, topic: str) -> None:
        weights = self.lesson.weights()
        self._first = self._first or [weight.detach().float().clone() for weight in weights]
        if topic != self._topic:
            self._owed = 0
            self._shelf[self._topic] = self.kept, self._copies, self._optimizer
            begun = deque[Row](maxlen=self.learning.capacity), list[Tensor](), None
            self._topic, (self.kept, self._copies, self._optimizer) = topic, self._shelf.pop(topic, begun)
            with torch.no_grad():
                for weight, copy in zip(weights, self._copies or self._first, strict=True):
                    weight.copy_(copy)

    def learn(self) -> None:
        """A lesson, if one is due: here, if no other thread holds one, or later in a thread of its own."""
        if self._calls < self.learning.every or not self.kept or self.stopped:
            return
        if self.learning.idle:
            with self._turn:
                self._owed, self._calls = self._owed + self.learning.steps, 0
                if self._thread is None:
                    self._thread = threading.Thread(target=self._idle, name="mmspec-learning")
                    self._thread.start()
        elif self._lock.acquire(blocking=False):
            try:
                self._calls = 0
                self._lesson(self.learning.steps)
            finally:
                self._lock.release()

    def rest(self, lessons: bool = True) -> None:
        """Wait until no lesson runs in a thread; without those that are due, if not `lessons`."""
        with self._turn:
            self._owed = self._owed if lessons else 0
            self._turn.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _idle(self) -> None:
        """Take the steps that are due, each while no call runs."""
        while True:
            with self._turn:
                self._turn.wait_for(lambda: not self._running or not self._owed)
                if not self._owed or self.stopped:
                    self._owed, self._thread = 0, None
                    return
                self._owed -= 1
                self._lesson(1)

    def _lesson(self, steps: int) -> None:
        """Steps; a fault ends learning, with a warning."""
        began = time.perf_counter()
        try:
            with torch.inference_mode(False), torch.enable_grad():
                for _ in range(steps):
                    self._step()
        except Exception as error:
            self.stopped = True
            if strict():
                raise
            warn(f"the drafter learns no more, and keeps its last good weights: {type(error).__name__}: {error}")
        finally:
            self.seconds += time.perf_counter() - began

    def _step(self) -> None:
        """One optimiser step on some of the rows."""
        rows, weights = list(self.kept), list(self.lesson.weights())
        chosen = [rows[-1], *self._draws.sample(rows[:-1], min(self.learning.batch, len(rows)) - 1)]
        before = [weight.requires_grad for weight in weights]
        try:
            for weight in weights:
                weight.requires_grad_(True)
            losses = [self.lesson.loss(*_tensors(row, weights[0].device)) for row in chosen]
            loss = torch.stack(losses).mean()
            gradients = torch.autograd.grad(loss, weights, allow_unused=True)  # of nothing else, least of the target
        finally:
            for weight, had in zip(weights, before, strict=True):
                weight.requires_grad_(had)
        self._update(weights, gradients, float(loss.detach()))

    @torch.no_grad()
    def _update(self, weights: Sequence[nn.Parameter], gradients: Sequence[Tensor | None], loss: float) -> None:
        """Change the weights in place."""
        if self._optimizer is None:
            self._copies = [weight.detach().float().clone() for weight in weights]
            self._optimizer = torch.optim.AdamW(
                self._copies, lr=self.learning.rate, betas=(0.9, 0.95), weight_decay=0.0
            )
        for copy, gradient in zip(self._copies, gradients, strict=True):
            copy.grad = None if gradient is None else gradient.to(copy)
        norm = float(nn.utils.clip_grad_norm_(self._copies, CLIP))
        if not torch.tensor([loss, norm]).isfinite().all():
            raise ValueError(f"its loss is {loss:g} and the norm of its gradient {norm:g}")
        self._optimizer.step()
        for weight, copy in zip(weights, self._copies, strict=True):
            weight.copy_(copy)
        self.loss, self.steps = loss, self.steps + 1


def _tensors(row: Row, device: torch.device) -> tuple[Tensor, Tensor]:
    """A row as a batch of one."""
    return torch.tensor([row.units], device=device), torch.tensor([row.counted], device=device)
