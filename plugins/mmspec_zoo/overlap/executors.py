"""The executors of draft models, and the lane that every call has in one of them.

An answer may come at any time, twice, or never: a call takes only the answer to its last request, and checks its units.
So an executor decides about speed alone, never about the output. `Serial` answers at once: the reference. `Streams` is
a thread of this process, on CUDA a stream of its own: nothing is copied, but the host's work for both models shares
Python's lock, so that it is worth it where passes are long beside their launches. `process.Process` is another process.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch

from mmspec.bench import timing
from mmspec.core.protocols import Target
from mmspec_zoo.overlap.ahead import Ahead, Request
from mmspec_zoo.overlap.continuation import Beginning, Continuation

Result = TypeVar("Result")


class Lane(Protocol):
    """One call's requests and answers."""

    def submit(self, request: Request) -> None:
        """Take a request, which costs passes of the draft model (`continuation`); a lane's run in order."""

    def verified(self) -> None:
        """The target's pass of this round is over."""

    def collect(self) -> list[Ahead]:
        """The answers that have arrived since the last time. Waits for those that were asked for since `verified`."""


class Executor(Protocol):
    def open(self, model: Target, how: Beginning) -> Lane:
        """The lane of a new call."""

    def step_seconds(self, model: Target) -> float | None:
        """Seconds of a pass of the draft model over one unit, where it runs; None: it does not answer."""


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
        return SerialLane(Continuation(model, how))

    def step_seconds(self, model: Target) -> float:
        return timing.step_seconds(model)


class Streams:
    """A thread that runs draft models: the requests of all calls, one after the other."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "mmspec-drafting")
        self._stream: torch.cuda.Stream | None = None

    def open(self, model: Target, how: Beginning) -> "StreamLane":
        if how.device.type == "cuda" and self._stream is None:
            self._stream = torch.cuda.Stream(how.device)
        begun = _aside(self._thread, self._stream, lambda: Continuation(model, how))
        return StreamLane(self._thread, self._stream, begun)

    def step_seconds(self, model: Target) -> float:
        return timing.step_seconds(model)


@dataclass
class StreamLane:
    thread: ThreadPoolExecutor  # runs them in order
    stream: torch.cuda.Stream | None  # on which stream; None: the device has none
    worker: "Future[Continuation]"  # the draft model of the call, once its prefill is done
    answers: "list[Future[Ahead]]" = field(default_factory=list)  # what was asked for and not collected yet

    def submit(self, request: Request) -> None:
        self.answers.append(_aside(self.thread, self.stream, lambda: self.worker.result().run(request)))

    def verified(self) -> None:
        """Does nothing: the thread has been drafting meanwhile."""

    def collect(self) -> list[Ahead]:
        found, self.answers = [answer.result() for answer in self.answers], []
        if self.stream is not None:  # their memory must outlast what this stream does with them
            for ahead in found:
                for part in (ahead.emitted, ahead.units, ahead.length):
                    part.record_stream(torch.cuda.current_stream(self.stream.device))
        return found


def _aside(
    thread: ThreadPoolExecutor, stream: torch.cuda.Stream | None, work: Callable[[], Result]
) -> "Future[Result]":
    """Do work in the thread, in the caller's mode, behind all that the caller's stream has got so far."""
    inference, before = torch.is_inference_mode_enabled(), None
    if stream is not None:
        before = torch.cuda.current_stream(stream.device).record_event()

    def job() -> Result:
        with torch.inference_mode(inference), torch.no_grad(), torch.cuda.stream(stream):
            if before is not None:
                before.wait(stream)
            result = work()
            if stream is not None:  # what the work reads is freed with it
                stream.synchronize()
            return result

    return thread.submit(job)
