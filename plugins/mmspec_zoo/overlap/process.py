"""`Process`: the draft model runs in a process of its own, while this one verifies.

Requests and answers are pickles on a pipe that only this process and its child have; each computes on a device of its
own (`crossing`). A call waits until the child has its model, and for answers that are on their way, since a round
without a draft costs a pass. Whatever becomes of the child costs speed alone: where it has died, or does not answer in
time, rounds go on without drafts.
"""

import os
import pickle
import queue
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import torch

from mmspec.core.protocols import Target
from mmspec.core.transfer import moved
from mmspec.registry.printable import first_line
from mmspec.registry.warn import warn
from mmspec_zoo.overlap.ahead import Ahead, Request
from mmspec_zoo.overlap.continuation import Beginning
from mmspec_zoo.overlap.crossing import read, written

WORKER = "mmspec_zoo.overlap.worker"
DIED = "the draft model's process has died; rounds go on without drafts"


class Process:
    """A child process with a draft model, which begins with `start`, or with the first call, and serves all in turn.

    `model` makes the draft model in the child, on its device; it can be pickled (`functools.partial(load, "name")`).
    `loading` seconds after the child began, calls no longer wait for its model; after `patience` seconds without an
    answer, rounds go on without one. Drafts are verified again once answers come.
    """

    def __init__(
        self, model: Callable[[], Target], patience: float = 10.0, device: str = "cpu", loading: float = 300.0
    ) -> None:
        self.model, self.patience, self.device, self.loading = model, patience, device, loading
        self.alive = False  # whether the child runs
        self._lanes: dict[int, ProcessLane] = {}
        self._opened = 0
        self.child: subprocess.Popen[bytes] | None = None  # None before it begins
        self._link: Connection
        self._heard = threading.Event()  # the child has its model, or has died
        self._seconds: float | None = None  # of a pass of its model; None before that is heard

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy begins a child of its own."""
        return Process, (self.model, self.patience, self.device, self.loading)

    def start(self) -> "subprocess.Popen[bytes]":
        """The child, which begins now unless it has begun before."""
        if self.child is not None:
            return self.child
        try:
            model = written((self.model,))
        except Exception as error:  # hooks of somebody else's, say
            raise ValueError(
                f"the draft model cannot be sent to a process of its own ({first_line(error)}): give the name or the "
                "folder that it was loaded from, or executor='serial'"
            ) from error
        self._began = time.monotonic()
        self._link, end = Pipe()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        command = [sys.executable, "-m", WORKER, str(end.fileno()), self.device]
        self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[end.fileno()], env=environment)
        end.close()  # so that the child's end is the only one, and its death is seen
        self.alive = True
        self._stop = weakref.finalize(self, _stopped, self.child, self._link)
        self._link.send_bytes(model)
        threading.Thread(target=_listen, args=(weakref.ref(self), self._link), daemon=True).start()
        return self.child

    def open(self, model: Target, how: Beginning) -> "ProcessLane":
        heard = self._is_heard()
        self._opened += 1
        lane = ProcessLane(self, self._opened, how.device, patient=heard)
        for number in list(self._lanes):  # of calls that are over
            self._send(("close", number, None))
        self._lanes = {lane.number: lane}
        self._send(("open", lane.number, how))
        return lane

    def step_seconds(self, model: Target) -> float | None:
        self._is_heard()
        return self._seconds

    def _is_heard(self) -> bool:
        """True once the child, which begins if it has not, has its model or has died; waits for that, and says so."""
        self.start()
        heard = self._heard.wait(max(0.0, self._began + self.loading - time.monotonic()))
        if not heard:
            warn(f"the draft model's process has no model after {self.loading:g} s; rounds go on without drafts")
        elif not self.alive:
            warn(DIED)
        return heard

    def close(self) -> None:
        """End the child, if it has begun."""
        if self.child is not None:
            self._died()
            self._stop()

    def _send(self, message: Any) -> None:
        if self.alive:
            sent = written(message)  # an error here is the caller's: something cannot be pickled
            try:
                self._link.send_bytes(sent)
            except OSError:
                self._died()

    def _arrived(self, number: int, answer: Ahead | float) -> None:
        if isinstance(answer, float):  # the child's first word
            self._seconds = answer
            self._heard.set()
        elif (lane := self._lanes.get(number)) is not None:
            lane.answers.put(answer)

    def _died(self) -> None:
        if self.alive:
            self.alive = False
            self._heard.set()
            for lane in self._lanes.values():
                lane.answers.put(None)


@dataclass
class ProcessLane:
    owner: Process
    number: int  # of the call
    device: torch.device  # where the call's units are
    # What has come; None: the child has died
    answers: "queue.SimpleQueue[Ahead | None]" = field(default_factory=queue.SimpleQueue)
    missing: int = 0  # requests without an answer
    # Whether to wait for them: not for a child that has kept a call waiting
    patient: bool = True

    def submit(self, request: Request) -> None:
        behind = self.missing and not self.patient  # then it would only answer what nobody waits for any more
        if self.owner.alive and not behind:
            self.owner._send(("ask", self.number, request))
            self.missing += 1

    def verified(self) -> None:
        """Does nothing: the child has been drafting meanwhile."""

    def collect(self) -> list[Ahead]:
        found = list[Ahead]()
        while self.missing:
            try:
                answer = self.answers.get(self.patient and self.owner.alive, self.owner.patience)
            except queue.Empty:
                if self.patient and self.owner.alive:
                    warn("the draft model's process does not answer; rounds go on without it until it does")
                self.patient = False
                break
            if answer is None:
                warn(DIED)
                self.missing = 0
                break
            self.missing, self.patient = self.missing - 1, True
            found.append(Ahead(*(moved(part, self.device) for part in (answer.emitted, answer.units, answer.length))))
        return found


def _listen(process: "weakref.ref[Process]", link: Connection) -> None:
    """Hand on answers until the link is closed."""
    while True:
        try:
            number, answer = read(link.recv_bytes())
        except (EOFError, OSError, pickle.UnpicklingError):
            owner = process()
            if owner is not None:
                owner._died()
            return
        owner = process()
        if owner is None:
            return
        owner._arrived(number, answer)
        del owner


def _stopped(child: "subprocess.Popen[bytes]", link: Connection) -> None:
    link.close()
    child.kill()
    child.wait()
