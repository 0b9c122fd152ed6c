"""Runs of a script, each in a process of its own, one after the other; never two at once, since they are timed."""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmspec.compare import compare, group
from mmspec.compare.recording import CALLS, STDERR, STDOUT, Recording


class ScriptFailed(RuntimeError):
    """The script did not run to its end.

    Attributes:
        speculating: Whether mmspec was enabled.
        code: The exit code.
        trace: The end of what it wrote to stderr.
    """

    def __init__(self, speculating: bool, code: int, trace: str) -> None:
        super().__init__(f"the script failed {'with mmspec' if speculating else 'without mmspec'} (exit code {code})")
        self.speculating = speculating
        self.code = code
        self.trace = trace


@dataclass(frozen=True)
class Runs:
    """All runs of a script.

    Attributes:
        plain: Without mmspec; at least one.
        ours: With it, as many.
        again: A last one without it, which judges the differences; None if there are none.
    """

    plain: list[Recording]
    ours: list[Recording]
    again: Recording | None

    @property
    def odd(self) -> Recording:
        """The first run with mmspec that differs from the first without; the first where none does."""
        return next((run for run in self.ours if compare.differing(self.plain[0], run)), self.ours[0])


@dataclass(frozen=True)
class Script:
    """What is run, and how.

    Attributes:
        file: The script.
        args: Its arguments.
        how: Arguments of `mmspec.enable`.
        plugins: Files of one-file plugins.
        work: An empty folder for recordings.
    """

    file: Path
    args: Sequence[str]
    how: Mapping[str, Any]
    plugins: Sequence[Path]
    work: Path

    def run(self, repeats: int, say: Callable[[str], None]) -> Runs:
        """Plain and with mmspec, in turn, `repeats` times each.

        Args:
            repeats: Of each.
            say: Hears what begins.

        Raises:
            ScriptFailed: It raised, or ended with another code than 0.
            ValueError: It makes no `generate` call.
        """
        plain: list[Recording] = []
        ours: list[Recording] = []
        for turn in range(1, repeats + 1):
            of = f" {turn} of {repeats}" if repeats > 1 else ""
            say(f"without mmspec{of} …")
            plain.append(self._record(f"plain-{turn}"))
            if not plain[0].calls:
                raise ValueError(f"{self.file} makes no generate call on a model of transformers; nothing to compare")
            say(f"with mmspec{of} …")
            ours.append(self._record(f"ours-{turn}", enable=self.how))
        runs = Runs(plain, ours, None)
        if not compare.differing(plain[0], runs.odd):
            return runs
        say("without mmspec once more, to judge the differences …")
        judge = {"folder": str(runs.odd.folder), "numbers": compare.to_judge(plain[0], runs.odd)}
        return Runs(plain, ours, self._record("again", judge=judge))

    def _record(self, name: str, enable: Mapping[str, Any] | None = None, judge: Any = None) -> Recording:
        folder = self.work / name
        folder.mkdir()
        task = {
            "script": str(self.file.resolve()),
            "args": list(self.args),
            "folder": str(folder),
            "enable": None if enable is None else dict(enable),
            "plugins": [str(plugin.resolve()) for plugin in self.plugins],
            "judge": judge,
        }
        task_file = folder / "task.json"
        task_file.write_text(json.dumps(task))
        # Sets of text iterate in another order in every process, unless told otherwise.
        environment = {"PYTHONHASHSEED": "0"} | os.environ
        with open(folder / STDOUT, "wb") as out, open(folder / STDERR, "wb") as err:
            command = [sys.executable, "-m", "mmspec.compare.runner", str(task_file)]
            code = group.run(command, out, err, environment)
        recording = Recording(folder)
        if code or not (folder / CALLS).is_file():
            raise ScriptFailed(enable is not None, code, recording.stderr[-4000:])
        return recording
