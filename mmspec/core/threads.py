"""The threads that compute: how many helpers each has, and calls whose passes run in the thread that waits for them.

On a CPU OpenMP's helpers wait actively for their master as long as a process has no more of them than processors:
passes of short operations are half as long again where several threads have helpers of their own.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch


def compute_with(helpers: int) -> None:
    """Let this thread compute with so many threads."""
    torch.set_num_threads(helpers)
    torch.get_num_threads()  # else torch takes the process's latest number when the thread first computes


class Caller(Executor):
    """Runs in the caller's thread what calls in other threads submit."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    def submit(self, run: Callable[..., Any], /, *args: Any, **how: Any) -> Future[Any]:
        job: Future[Any] = Future()
        self._jobs.put((job, partial(run, *args, **how)))
        return job

    def run(self, calls: Sequence[Callable[[], Any]], threads: int) -> None:
        """Run calls, so many at a time, and until all have ended what they submit; raises what one of them raises."""
        helpers, stopped = torch.get_num_threads(), None
        try:
            with ThreadPoolExecutor(threads, initializer=compute_with, initargs=(1,)) as pool:
                running = [pool.submit(call) for call in calls]
                for each in running:
                    each.add_done_callback(lambda _: self._jobs.put(None))
                left = len(running)
                while left:
                    try:
                        given = self._jobs.get()
                        left -= given is None
                        if given is not None:
                            _fulfil(*given, stopped)
                    except KeyboardInterrupt as error:  # the calls end with it, each in its thread
                        stopped = error
                        pool.shutdown(wait=False, cancel_futures=True)
        finally:
            torch.set_num_threads(helpers)  # the process's number, which its later threads take
        if stopped is not None:
            raise stopped
        for each in running:
            each.result()


def _fulfil(job: Future[Any], run: Callable[[], Any], stopped: BaseException | None) -> None:
    """Give a job its result, or what ended it; once something has `stopped` all, that."""
    try:
        if stopped is not None:
            raise stopped
        job.set_result(run())
    except BaseException as error:
        job.set_exception(error)
        if error is not stopped and not isinstance(error, Exception):
            raise
