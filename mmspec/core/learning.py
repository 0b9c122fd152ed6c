"""Online learning: a drafter is trained between calls on the rows of the calls that it drafted for.

Online speculative decoding (Liu et al., arXiv 2310.07177). Of every row the tokens are kept, and at which positions a
draft was corrected. Between calls, never while one is decoded, the drafter takes a few optimiser steps on kept rows:
what the target says of them is computed again then, so that a kept token costs two numbers and no hidden states.

A position is corrected if something was drafted there and the target emitted another unit. The bonus unit behind a
draft that was accepted as a whole is no correction, nor is the unit at which a row was cut off. The loss at a corrected
unit is that of the distribution in front of it, from which the wrong unit was drafted.

Nothing of the target is changed, and no random number of the user's is drawn. So under an invariant rule learning
changes no unit of any output; under a lossless one drafts carry the distribution that they were really drawn from.
"""

import random
import threading
import time
from collections import deque
from collections.abc import Sequence
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
        self._drafter, self.learning = drafter, learning
        self.kept: deque[Row] = deque(maxlen=learning.capacity)  # the oldest first
        self.steps, self.seconds = 0, 0.0  # of the optimiser, and of all lessons
        self.stopped = False  # whether learning ended early, after a loss that was not finite or another fault
        self.loss: float | None = None  # that of the latest step; None before the first
        self._calls = 0
        self._draws = random.Random(0)
        self._lock = threading.Lock()
        # Steps are taken on copies in float32: in half precision small ones would be lost in rounding.
        self._copies: list[Tensor] = []
        self._optimizer: torch.optim.Optimizer | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("lesson", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    @cached_property
    def lesson(self) -> Lesson:
        """The drafter's lesson; a copy of the learner makes its own.

        Raises:
            ValueError: The drafter cannot learn for this target.
        """
        return self._drafter.lesson(self.learning.loss, self.learning.depth)

    def notes(self) -> Notes | None:
        """Notes for a new call; None after a fault."""
        return None if self.stopped else Notes(self.learning)

    def keep(self, rows: Sequence[Row]) -> None:
        """Keep the rows of a call that ended well; calls that raise leave nothing."""
        self.kept.extend(rows)
        self._calls += 1

    def learn(self) -> None:
        """A lesson, if one is due and no other thread holds one; a fault ends learning, with a warning."""
        due = self._calls >= self.learning.every and bool(self.kept) and not self.stopped
        if not due or not self._lock.acquire(blocking=False):
            return
        began, self._calls = time.perf_counter(), 0
        try:
            with torch.inference_mode(False), torch.enable_grad():
                for _ in range(self.learning.steps):
                    self._step()
        except Exception as error:
            self.stopped = True
            if strict():
                raise
            warn(f"the drafter learns no more, and keeps its last good weights: {type(error).__name__}: {error}")
        finally:
            self.seconds += time.perf_counter() - began
            self._lock.release()

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
