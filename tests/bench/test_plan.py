"""How long a benchmark takes is said before it begins; `--quick` does all methods in a twentieth. No clock is read."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from mmspec.bench import command
from mmspec.bench.pipelines import Size
from mmspec.bench.race import Plan, Run, planned
from mmspec.cli.app import build
from mmspec.kits.text.bench.run import calls_of, tokens_of
from mmspec.kits.text.bench.settings import BenchOptions
from mmspec.report.result import Result
from mmspec.report.trust import load_result
from mmspec_ssm import bench as ssm
from mmspec_text.bench import methods_of
from tools.bench.text.whole import whole_tokens

LONG = BenchOptions()
LASTS = {"text": (33, methods_of("mmspec/text-14m")), "ssm": (29, ssm.methods_of("mmspec/ssm-5m"))}
"""Minutes of the whole ones (`tools/`) on two idle cores, and what they try."""
ROOM = 75
"""Seconds that generating may take: compiling and loading take the rest of two minutes."""


@pytest.mark.parametrize("name", LASTS)
def test_quick_generates_so_few_tokens_that_two_minutes_are_enough(name: str) -> None:
    minutes, methods = LASTS[name]
    share = tokens_of(methods, LONG.quick, 2) / whole_tokens(methods, LONG, 2)
    assert minutes * 60 * share < ROOM
    assert LONG.quick.repeats >= 3, "a median of three"


def test_quick_is_never_more_than_was_asked_for() -> None:
    few = BenchOptions(prompts=1, new=8, repeats=1, batch=2)
    assert (few.quick.prompts, few.quick.new, few.quick.repeats, few.quick.batch) == (1, 8, 1, 0)
    assert LONG.quick.quick == LONG.quick != LONG
    size = Size(repeats=1, window=3, seed=2)
    assert size.shorter == Size(1, 3, 2, quick=True) and replace(size, repeats=9).shorter.repeats == 2


def test_calls_are_counted_for_what_is_done() -> None:
    one = BenchOptions(prompts=1, repeats=1, batch=0)
    raced, tried = 2 * (1 + 1 + 4), 8 * 3  # warm-up and repeat of plain, one method, four peers; eight settings
    assert calls_of(["suffix"], one, 1) == 2 * (raced + tried) and calls_of(["suffix"], one, 2) == 4 * (raced + tried)
    assert tokens_of(["suffix"], one, 1) == 96 * calls_of(["suffix"], one, 1)


def test_the_estimate_is_one_measured_call_times_the_work() -> None:
    taken = [100.0, 0.5]  # the first one warms up
    plan = planned(7, 2640, 240, lambda: Run(taken.pop(0), [torch.zeros(1)]))
    assert plan == Plan(7, 1320.0, 120.0)
    assert str(plan) == "about 22 minutes on this machine; --quick takes about 2 minutes"
    assert str(Plan(7, 50.0)) == "about 1 minute on this machine" and str(Plan(7, 20.0)).startswith("less than a")


def test_it_is_said_before_anything_else(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = Result("text", "a model", "a machine", {}, 0, {}, [], {})

    def run(progress: Callable[[Plan], Callable[[], None]]) -> Result:
        progress(Plan(3, 1320.0, 100.0))
        assert "bench text: about 22 minutes on this machine; --quick takes about 2" in capsys.readouterr().err
        return result

    command.bench("text", run, tmp_path / "r.json", None)
    assert load_result(tmp_path / "r.json") == result


@pytest.mark.parametrize("name", ["text", "ssm", "image", "continuous", "video"])
def test_all_benches_have_a_quick_form(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def bench(name: str, run: Callable[[Any], Any], *files: Any) -> None:
        held = dict(zip(run.__code__.co_freevars, (cell.cell_contents for cell in run.__closure__ or ()), strict=True))
        asked.append(held.get("options") or held["size"])

    monkeypatch.setattr(f"mmspec.{'kits.text.bench' if name in ('text', 'ssm') else 'bench'}.command.bench", bench)
    for arguments in ([], ["--quick"]):
        made = CliRunner().invoke(build(), ["bench", name, *arguments])
        assert made.exit_code == 0, made.exception
    long, quick = asked
    assert quick == (long.shorter if isinstance(long, Size) else long.quick) != long
    told = CliRunner().invoke(build(), ["bench", name, "--help"]).output
    assert "quick" in re.sub(r"\x1b\[[0-9;]*m", "", told)
