"""The outermost function of the command line: errors become one line on stderr and exit code 2.

A closed pipe is not an error message. `MMSPEC_TRACE=1` shows tracebacks instead.
"""

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import typer

from mmspec.cli.groups import INTERRUPTED
from mmspec.registry import PluginError, switches
from mmspec.registry.printable import one_line

MISTAKE = 2  # exit code of wrong arguments, and of what cannot be done on this machine
CLOSED = 1  # exit code after the reader of a pipe has gone, as in `mmspec methods | head -1`
#: Errors caused by users, files, devices and other libraries; any other type is a fault of mmspec.
_EXPECTED = (ValueError, TypeError, OSError, ImportError, RuntimeError, ArithmeticError, MemoryError, AssertionError)


@runtime_checkable
class Usage(Protocol):
    """An error of the command line's parser, whichever library raises it."""

    exit_code: int

    def format_message(self) -> str:
        """The error in words."""


def run(command: Callable[[], Any]) -> int:
    """Run a command, whose result is its exit code or else 0, and turn its errors into one line on stderr."""
    _escape_unprintable()
    usual, warnings.formatwarning = warnings.formatwarning, _formatted
    try:
        code = command()
        sys.stdout.flush()  # a full disk is an error only here
    except SystemExit as stop:
        code = stop.code
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        code = CLOSED
    except Exception as error:
        if switches.tracing():
            raise
        code = _print_error(error)
    finally:
        warnings.formatwarning = usual
    _flush()
    return code if isinstance(code, int) else 0


def message_of(error: BaseException) -> str:
    """One line for users that says what an error means."""
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


def _formatted(message: Warning | str, category: type, filename: str, lineno: int, line: str | None = None) -> str:
    """A warning as text: its place is not that of the command itself, which is no line of a user's."""
    said = str(message).strip()
    if os.path.abspath(filename) == os.path.abspath(sys.argv[0]):
        return f"mmspec: {said}\n"
    return f"{filename}:{lineno}: {category.__name__}: {said}\n"


def _print_error(error: Exception) -> int:
    text = message_of(error)
    if text:  # a group without a command has shown its help instead
        with contextlib.suppress(OSError):
            print(f"mmspec: {text}", file=sys.stderr, flush=True)
    return error.exit_code if isinstance(error, Usage) else MISTAKE


def _escape_unprintable() -> None:
    """Write characters that the terminal's encoding lacks as escapes, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _flush() -> None:
    """Drop what cannot be written; otherwise Python reports it when it exits."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with open(os.devnull, "wb") as nothing:
                os.dup2(nothing.fileno(), stream.fileno())
