"""A process with all that it starts: it ends, and so do they."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import IO, Any

GRACE = 5.0
"""Seconds from the wish to end to the end."""
ENDED = 128
"""What a shell adds to the number of the signal that ended a process."""
_WISHES = (signal.SIGTERM, signal.SIGHUP)


def run(command: Sequence[str], out: IO[bytes], err: IO[bytes], environment: Mapping[str, str]) -> int:
    """Run a command without input to its end, and return its exit code; whatever ends this call ends the command.

    Args:
        command: Program and arguments.
        out: Receives its stdout.
        err: Receives its stderr.
        environment: Its environment.
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
        _send(process, signal.SIGKILL)  # to what it left behind, too
        process.wait()


@contextlib.contextmanager
def signals_end() -> Iterator[None]:
    """Inside of the block a wish to end unwinds the stack, so that everything is tidied up; then the process ends."""

    def end(number: int, frame: FrameType | None) -> None:
        for wish in _WISHES:  # one is enough
            signal.signal(wish, signal.SIG_IGN)
        raise SystemExit(ENDED + number)

    before: list[Callable[..., Any] | int | None] = [signal.signal(wish, end) for wish in _WISHES]
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(ENDED + signal.SIGINT) from None
    finally:
        for wish, handler in zip(_WISHES, before, strict=True):
            signal.signal(wish, handler)


def _send(process: "subprocess.Popen[bytes]", number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # nobody is left
        os.killpg(process.pid, number)
