"""Runs of a script, each in a process of its own, one after the other: they are timed, so that none may overlap.

A script and all processes that it starts are a process group, and end together.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any, Literal

from mmspec.compare import findings
from mmspec.compare.recording import CALLS, STDERR, STDOUT, Recording

Reference = Literal["generate", "plain"]
PLAIN: Reference = "plain"
REFERENCES: tuple[Reference, ...] = ("generate", PLAIN)


class ScriptFailed(RuntimeError):
    """The script did not end with exit code 0; `how` says in the message how it was run."""

    def __init__(self, speculating: bool, code: int, trace: str, how: str) -> None:
        super().__init__(f"the script failed {how} (exit code {code})")
        self.speculating = speculating  # whether mmspec was enabled
        self.code = code
        self.trace = trace  # the end of what it wrote to stderr


@dataclass(frozen=True)
class Runs:
    plain: list[Recording]  # runs without mmspec, or with its plain decoding, at least one
    ours: list[Recording]  # as many runs with mmspec
    again: Recording | None  # A last plain run, which judges the differences; None if there are none

    @property
    def different(self) -> Recording:
        """The first run with mmspec that differs from the first plain run; the first one if none differs."""
        return next((run for run in self.ours if findings.differing(self.plain[0], run)), self.ours[0])


@dataclass(frozen=True)
class Script:
    """A script, and how it is run."""

    file: Path  # the script
    args: Sequence[str]  # the script's arguments
    how: Mapping[str, Any]  # arguments of `mmspec.enable`.
    plugins: Sequence[Path]  # files of one-file plugins
    work: Path  # an empty folder for recordings
    # What "plain" is: `generate` of unmodified transformers, or mmspec's `plain` of the method's width
    reference: Reference = "generate"

    def run(self, repeats: int, say: Callable[[str], None]) -> Runs:
        """Run it without and with mmspec, in turn, `repeats` times each; `say` gets a line of text whenever a run
        begins. Raises `ScriptFailed` where it ends with another code than 0.
        """
        plain: list[Recording] = []
        ours: list[Recording] = []
        for turn in range(1, repeats + 1):
            of = f" {turn} of {repeats}" if repeats > 1 else ""
            say(f"{self._plainly}{of} …")
            plain.append(self._record(f"plain-{turn}", plainly=True))
            if not plain[0].calls:
                raise ValueError(f"{self.file} makes no generate call on a model of transformers; nothing to compare")
            say(f"with mmspec{of} …")
            ours.append(self._record(f"ours-{turn}"))
        runs = Runs(plain, ours, None)
        if not findings.differing(plain[0], runs.different):
            return runs
        say(f"{self._plainly} once more, to judge the differences …")
        if self.reference == PLAIN:  # passes of one width leave no near-tie to judge: does the script repeat itself?
            return Runs(plain, ours, self._record("again", plainly=True))
        judge = {"folder": str(runs.different.folder), "numbers": findings.to_judge(plain[0], runs.different)}
        return Runs(plain, ours, self._record("again", plainly=True, judge=judge))

    @property
    def _plainly(self) -> str:
        return "with mmspec, plainly" if self.reference == PLAIN else "without mmspec"

    def _record(self, name: str, plainly: bool = False, judge: Any = None) -> Recording:
        """One run: plainly, as `reference` says, or with the method."""
        stock = plainly and self.reference != PLAIN
        folder = self.work / name
        folder.mkdir()
        task = {
            "script": str(self.file.resolve()),
            "args": list(self.args),
            "folder": str(folder),
            "enable": None if stock else dict(self.how),
            "plugins": [str(plugin.resolve()) for plugin in self.plugins],
            "plainly": plainly,
            "judge": judge,
        }
        task_file = folder / "task.json"
        task_file.write_text(json.dumps(task))
        # Without it, sets of text iterate in another order in every process.
        environment = {"PYTHONHASHSEED": "0"} | os.environ
        with open(folder / STDOUT, "wb") as out, open(folder / STDERR, "wb") as err:
            command = [sys.executable, "-m", "mmspec.compare.runner", str(task_file)]
            code = run_in_group(command, out, err, environment)
        recording = Recording(folder)
        if code or not (folder / CALLS).is_file():
            how = self._plainly if plainly else "with mmspec"
            raise ScriptFailed(not plainly, code, recording.stderr[-4000:], how)
        return recording


GRACE = 5.0  # seconds from the signal to end until the process is killed
ENDED = 128  # the number that a shell adds to the number of the signal that ended a process
_END_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def run_in_group(command: Sequence[str], out: IO[bytes], err: IO[bytes], environment: Mapping[str, str]) -> int:
    """Run a command without input to its end, and return its exit code; an exception here ends the command, too."""
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
