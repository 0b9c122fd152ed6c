"""Where a command line ends: whatever goes wrong is one line on stderr and exit code 2; a pipe that closes is no fault.

`MMSPEC_TRACE=1` shows tracebacks instead.
"""

import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import typer

from mmspec.cli.groups import INTERRUPTED
from mmspec.registry import PluginError, switches
from mmspec.registry.printable import one_line

MISTAKE = 2
"""Exit code of what was asked wrongly, or cannot be done here."""
CLOSED = 1
"""Exit code where whoever reads has gone, as in `mmspec methods | head -1`."""
#: What users, files, devices and other people's code cause; any other kind is a fault of ours.
_EXPECTED = (ValueError, TypeError, OSError, ImportError, RuntimeError, ArithmeticError, MemoryError, AssertionError)


@runtime_checkable
class Usage(Protocol):
    """What the parser of the command line raises, whichever library it is from."""

    exit_code: int

    def format_message(self) -> str:
        """The mistake in words."""


def run(command: Callable[[], Any]) -> int:
    """Run to the end.

    Args:
        command: What is to be run; it returns its exit code, or anything else for 0.

    Returns:
        The exit code.
    """
    _print_whatever_there_is()
    try:
        code = command()
        sys.stdout.flush()  # here a full disk can still be told
    except SystemExit as stop:
        code = stop.code
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        code = CLOSED
    except Exception as error:
        if switches.tracing():
            raise
        code = _tell(error)
    _leave_nothing_to_flush()
    return code if isinstance(code, int) else 0


def told(error: BaseException) -> str:
    """An error, as one line for users."""
    if isinstance(error, Usage):
        return one_line(Exception(error.format_message()))
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename is not None else ""
        return one_line(Exception(f"{error.strerror}{where}"))
    if isinstance(error, MemoryError):
        return "there is not enough memory for this"
    if isinstance(error, (ValueError, TypeError, PluginError)):
        return one_line(error)
    fault = "" if isinstance(error, _EXPECTED) else " (a fault of mmspec: MMSPEC_TRACE=1 shows where)"
    return f"{type(error).__name__}: {one_line(error)}{fault}"


def _tell(error: Exception) -> int:
    text = told(error)
    if text:  # a bare group has shown its help instead
        with contextlib.suppress(OSError):
            print(f"mmspec: {text}", file=sys.stderr, flush=True)
    return error.exit_code if isinstance(error, Usage) else MISTAKE


def _print_whatever_there_is() -> None:
    """Characters that the terminal's encoding lacks are written as escapes, instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _leave_nothing_to_flush() -> None:
    """What cannot be written anywhere is dropped here: Python would complain of it when it ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with open(os.devnull, "wb") as nothing:
                os.dup2(nothing.fileno(), stream.fileno())
