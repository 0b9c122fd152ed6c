"""A process group: the script and all processes that it starts end together."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import IO, Any

GRACE = 5.0
"""Seconds from the signal to end until the process is killed."""
ENDED = 128
"""What a shell adds to the number of the signal that ended a process."""
_END_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def run(command: Sequence[str], out: IO[bytes], err: IO[bytes], environment: Mapping[str, str]) -> int:
    """Run a command without input to its end, and return its exit code; an exception here ends the command, too.

    Args:
        command: Program and arguments.
        out: The file for stdout.
        err: The file for stderr.
        environment: Environment variables.
    """
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, start_new_session=True
    )
    try:
        return process.wait()
    except BaseException:
        _send(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        raise
    finally:
        _send(process, signal.SIGKILL)  # also ends processes that the command left running
        process.wait()


@contextlib.contextmanager
def signals_end() -> Iterator[None]:
    """A block in which SIGTERM and SIGHUP unwind the stack, so that everything is cleaned up; then the process ends."""

    def end(number: int, frame: FrameType | None) -> None:
        for other in _END_SIGNALS:  # the first one is enough
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(ENDED + number)

    before: list[Callable[..., Any] | int | None] = [signal.signal(each, end) for each in _END_SIGNALS]
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(ENDED + signal.SIGINT) from None
    finally:
        for each, handler in zip(_END_SIGNALS, before, strict=True):
            signal.signal(each, handler)


def _send(process: "subprocess.Popen[bytes]", number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # the group is empty
        os.killpg(process.pid, number)
