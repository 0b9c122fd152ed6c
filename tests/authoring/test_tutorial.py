"""The tutorial for plugin authors runs as written: its modules, its code, its commands."""

import re
import shlex
from pathlib import Path

import pytest

from mmspec.testing.conformance.benches import history

TEXT = (Path(__file__).parents[2] / "docs" / "authors" / "README.md").read_text()
SECTION = TEXT.split("## A drafter in ten lines\n")[1].split("\n## ")[0]


def test_the_tutorial_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mmspec) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("mmspec.testing.conformance.subject.toys", lambda: [history()])  # one toy of four
    outputs = {}
    for language, code in re.findall(r"^```(\w+)\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL):
        if language == "console":
            for line in code.splitlines():
                program, *arguments = shlex.split(line)
                run = mmspec(*arguments)
                assert program == "mmspec" and run.exit_code == 0, f"{line}\n{run.output}\n{run.exception!r}"
                outputs[line] = run.output
        elif name := re.match(r"# (\w+\.py)\n", code):
            Path(name[1]).write_text(code)
        else:
            exec(compile(code, "docs/authors/README.md", "exec"), {})
    said = "\n".join(outputs.values())
    assert len(outputs) == 5 and "invariant" in said and "def main(" in said and "pass" in said
    assert (tmp_path / "mmspec-acme" / "pyproject.toml").is_file()
    author = re.search(r"class Markov:\n.*?\n\n\n", SECTION, re.DOTALL)[0]
    assert len([line for line in author.splitlines() if line.strip()]) <= 10, "ten lines are what it promises"
