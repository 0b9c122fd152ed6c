"""`Simulated` runs a draft model and its target in one thread, in an interleaving that a seed chooses.

Messages are late, lost or doubled as often as is asked for. Its clock takes the longer of drafting and verifying, as
two devices would.
"""

import random
from collections import deque
from dataclasses import dataclass, field

from mmspec.core.protocols import Target
from mmspec_zoo.overlap.ahead import Ahead, Request
from mmspec_zoo.overlap.continuation import Beginning, Continuation


@dataclass(frozen=True)
class Costs:
    """The costs of passes."""

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
    """An executor, see the module.

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
        return SimulatedLane(self, Continuation(model, how))

    def step_seconds(self, model: Target) -> float:
        return self.costs.draft


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
