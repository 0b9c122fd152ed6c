"""Who runs a draft model, and when: executors, and the lane that every call has in one of them.

An answer may come at any time, twice, or never: a call takes only the answer to its last request, and checks its units.
So an executor decides about speed alone, never about the output.

* `Serial` answers at once: the reference. `process` and `streams`, beside this file, have those that run aside.
* `Simulated` runs everything in one thread, in an interleaving that a seed chooses, with messages that are late, lost
  or doubled as often as is asked for. Its clock takes the longer of drafting and verifying, as two devices would.
"""

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from mmspec.core.protocols import Target
from mmspec_zoo.overlap.ahead import Ahead, Request
from mmspec_zoo.overlap.continuation import Beginning, Continuation


class Lane(Protocol):
    """One call's requests and answers."""

    def submit(self, request: Request) -> None:
        """Take a request, which costs `request.count` passes of the draft model; those of a lane run in order."""
        ...

    def verified(self) -> None:
        """The target's pass of this round is over."""
        ...

    def collect(self) -> list[Ahead]:
        """The answers that have arrived since the last time. Waits for those that were asked for since `verified`."""
        ...


class Executor(Protocol):
    """Runs draft models."""

    def open(self, model: Target, how: Beginning) -> Lane:
        """The lane of a new call.

        Args:
            model: The draft model.
            how: How it begins.
        """
        ...


@dataclass
class SerialLane:
    """Runs a request when it is submitted."""

    worker: Continuation
    answers: list[Ahead] = field(default_factory=list)

    def submit(self, request: Request) -> None:
        self.answers.append(self.worker.run(request))

    def verified(self) -> None:
        """Does nothing: the draft model has run already."""

    def collect(self) -> list[Ahead]:
        answers, self.answers = self.answers, []
        return answers


class Serial:
    """Answers at once, before the target's pass."""

    def open(self, model: Target, how: Beginning) -> SerialLane:
        return SerialLane(Continuation.begun(model, how))


@dataclass(frozen=True)
class Costs:
    """What passes cost."""

    draft: float  # seconds of a pass of the draft model
    verify: float  # seconds of a pass of the target
    early: float = 0.0  # seconds of the target's pass before the draft model is asked

    def overlapped(self, passes: int) -> float:
        """Seconds of a round on two devices: max(γ · t_d, t_v), as in PEARL; behind an early exit, as in Mirror-SD."""
        return self.early + max(passes * self.draft, self.verify - self.early)


@dataclass(frozen=True)
class Faults:
    """Probabilities with which an answer arrives a round late, twice, or never, and with which a job never runs."""

    late: float = 0.0
    doubled: float = 0.0
    lost: float = 0.0
    dropped: float = 0.0


class Simulated:
    """See the module.

    Args:
        costs: What passes cost on the clock.
        seed: Chooses the interleaving and the faults.
        faults: How often messages go astray.

    Attributes:
        seconds: The clock.
    """

    def __init__(self, costs: Costs, seed: int = 0, faults: Faults | None = None) -> None:
        self.costs, self.faults, self.seconds = costs, faults or Faults(), 0.0
        self.random = random.Random(seed)

    def open(self, model: Target, how: Beginning) -> "SimulatedLane":
        return SimulatedLane(self, Continuation.begun(model, how))


@dataclass
class SimulatedLane:
    """Requests that run before, during or after the target's pass, and answers on their way."""

    owner: Simulated
    worker: Continuation
    jobs: deque[Request] = field(default_factory=deque)
    arrived: list[Ahead] = field(default_factory=list)
    underway: list[Ahead] = field(default_factory=list)
    passes: int = 0

    def submit(self, request: Request) -> None:
        if self.owner.random.random() >= self.owner.faults.dropped:
            self.jobs.append(request)
        self.passes += request.count
        self._maybe_run()

    def verified(self) -> None:
        self.owner.seconds += self.owner.costs.overlapped(self.passes)
        self.passes = 0
        self._maybe_run()

    def collect(self) -> list[Ahead]:
        self.owner.seconds += self.passes * self.owner.costs.draft  # what was asked for since the target's pass
        self.passes = 0
        late, self.underway = self.underway, []
        while self.jobs:
            self._run()
        answers, self.arrived = self.arrived + late, []
        self.owner.random.shuffle(answers)
        return answers

    def _maybe_run(self) -> None:
        if self.jobs and self.owner.random.random() < 0.5:
            self._run()

    def _run(self) -> None:
        faults, chance = self.owner.faults, self.owner.random.random
        answer = self.worker.run(self.jobs.popleft())
        if chance() < faults.lost:
            return
        where = self.underway if chance() < faults.late else self.arrived
        where.extend([answer] * (2 if chance() < faults.doubled else 1))
