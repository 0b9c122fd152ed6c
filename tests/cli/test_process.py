"""The command line as a process: closed pipes, full disks, poor locales, no home; and tables that nobody watches."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmspec import shipped
from mmspec.cli.app import build
from mmspec.registry import MethodSpec, hookimpl, installed
from mmspec.report import terminal

LONG = "a-method-whose-name-is-longer-than-any-terminal-that-has-eighty-columns-is-wide"
ASCII = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}


def mmspec(
    *arguments: str, stdout: int = subprocess.PIPE, module: str = "mmspec", **environment: str | None
) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, "COLUMNS": None, **environment}
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={name: value for name, value in given.items() if value is not None},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


@pytest.mark.parametrize("command", ["methods", "plugins", "--help"])
def test_a_pipe_that_is_closed_is_no_fault(command: str) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    try:
        run = mmspec(command, stdout=writes)
    finally:
        os.close(writes)
    assert (run.returncode, run.stderr) == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
@pytest.mark.parametrize("command", ["methods", "plugins", "--version"])
def test_a_full_disk_is_one_line(command: str) -> None:
    with open("/dev/full", "w") as full:
        run = mmspec(command, stdout=full.fileno())
    assert (run.returncode, run.stderr) == (2, "mmspec: No space left on device\n")


@pytest.mark.parametrize("home", [None, "/dev/null", ""])
def test_a_home_is_not_needed(home: str | None) -> None:
    run = mmspec("plugins", HOME=home, HF_HOME=None, XDG_CACHE_HOME=None)
    assert run.returncode == 0 and run.stderr == "" and "text" in run.stdout


def test_a_locale_without_the_characters_gets_their_escapes(tmp_path: Path) -> None:
    run = mmspec("methods", "café × 猫", **ASCII)
    assert run.returncode == 2 and run.stderr.startswith("mmspec: ") and run.stderr.count("\n") == 1
    assert run.stderr.isascii() and "caf\\" in run.stderr


def test_cards_are_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    bench = shipped.folder("model_cards") / "emoji.bench.json"
    card = tmp_path / "card.md"
    card.write_text("# Une carte: café, 猫, ×\n", encoding="utf-8")
    assert mmspec(str(bench), "-o", str(card), module="tools.cards", **ASCII).returncode == 0
    text = card.read_text(encoding="utf-8")
    assert text.startswith("# Une carte: café, 猫, ×\n") and text.count("<!-- bench") == text.count("<!-- /bench")
    assert mmspec(str(bench), "-o", str(card), "--check", module="tools.cards", **ASCII).returncode == 0
    assert mmspec("--readme", str(card), "--check", module="tools.cards", **ASCII).returncode == 0


class Wide:
    """Offers one method with a long name, and much to say."""

    @hookimpl
    def mmspec_components(self) -> list[MethodSpec]:
        summary = "In " + "many words " * 6
        return [MethodSpec(name=LONG, exactness="lossy", rule="core:match", summary=summary)]


def test_a_table_in_a_pipe_has_the_width_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    installed().register(Wide(), "wide")
    try:
        listed = CliRunner().invoke(build(), ["methods"]).output
        rows = json.loads(CliRunner().invoke(build(), ["methods", "--json"]).output)
        fitting = CliRunner().invoke(build(), ["methods", "--for", "mmspec/emoji", "--all"]).output
        plugins = CliRunner().invoke(build(), ["plugins"]).output
    finally:
        installed().unregister("wide")
    lines = listed.splitlines()
    assert len(lines) == 1 + len(rows)
    for row, line in zip(sorted(rows, key=lambda row: row["name"]), lines[1:], strict=True):
        cells = re.split(r"\s{2,}", line.strip())
        assert cells[0] == row["name"] and row["summary"].strip() in line and cells[-1] == row["owner"]
    assert len(plugins.splitlines()) == 1 + len(installed().plugins()) + 1
    (text,) = [line for line in plugins.splitlines() if line.startswith("text ")]
    assert "; method: auto, plain" in text
    measured = [line for line in fitting.splitlines() if line.startswith(("gs-sjd ", LONG))]
    assert len(measured) == 2 and sum("; guidance 1" in line for line in measured) == 1


def test_a_terminal_folds_words_but_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    listed = CliRunner().invoke(build(), ["methods"]).output
    assert max(map(len, listed.splitlines())) <= 60
    for name in ("speculative-denoising", "branch-prediction"):
        assert re.search(rf"^{name}\s", listed, re.MULTILINE)


def test_nothing_is_read_as_markup_and_nothing_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    console = terminal.terminal()
    odd = "[/x] [bold]b[/bold] \\[ \x1b[2J\u202e :warning:"
    terminal.line(console, f"{odd}\nnext")
    terminal.table(console, [odd], [[odd], [terminal.text(odd, "red")]])
    shown = "[/x] [bold]b[/bold] \\[ \\x1b[2J\\u202e :warning:"
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [shown, "next", shown, shown, shown]
