"""Commands that plugins add; `doctor`."""

import dataclasses
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import typer
from typer.main import get_command
from typer.testing import CliRunner

from mmspec import shipped
from mmspec.cli.app import PANELS, build
from mmspec.cli.groups import group
from tests.support.zoo import RECURRENT, REFUSED
from tests.support.zoo.recipe import scaled

HELLO = """
from mmspec.registry import hookimpl

@hookimpl
def mmspec_components():
    return []

@hookimpl
def mmspec_commands(app):
    {body}
    app.command("hello")(lambda: print("hello from a plugin"))
"""


@pytest.fixture
def reload(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes the command line see what the test installed; undone after it."""
    from mmspec.cli import app, doctor
    from mmspec.registry import load

    def again() -> None:
        registry = load()
        for module in (app, doctor):
            monkeypatch.setattr(module, "installed", lambda: registry)

    return again


def test_a_plugin_adds_a_command(install, reload) -> None:
    install("hello", HELLO.format(body="pass"))
    reload()
    assert CliRunner().invoke(build(), ["hello"]).output == "hello from a plugin\n"


def test_a_plugin_that_fails_to_add_one_harms_no_one(install, reload) -> None:
    install("hello", HELLO.format(body="1 / 0"))
    reload()
    with pytest.warns(UserWarning, match="plugin 'hello' failed in mmspec_commands: division by zero"):
        app = build()
    assert CliRunner().invoke(app, ["--version"]).exit_code == 0


def test_a_bare_group_runs_all_its_commands_if_it_says_so() -> None:
    app, ran = typer.Typer(), []
    demos = group(app, "demo", "Run all.", run_all=True)
    for name in ("text", "image"):
        demos.command(name)(lambda name=name: ran.append(name))
    group(app, "train", "Train.").command("text")(lambda: ran.append("train"))
    assert CliRunner().invoke(app, ["demo"]).exit_code == 0 and ran == ["text", "image"]
    assert CliRunner().invoke(app, ["demo", "image"]).exit_code == 0 and ran == ["text", "image", "image"]


@pytest.mark.parametrize(("given", "threads"), [(None, "1"), ("4", "4")])
def test_demos_take_one_thread_unless_the_user_says_how_many(
    given: str | None, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads that spin on shared cores are slower than one."""
    app, seen = typer.Typer(), []
    group(app, "demo", "Run all.", run_all=True).command("text")(lambda: seen.append(os.environ["OMP_NUM_THREADS"]))
    monkeypatch.setenv("OMP_NUM_THREADS", given or "")
    if given is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    assert CliRunner().invoke(app, ["demo"]).exit_code == 0 and seen == [threads]


def test_plugins_share_a_group() -> None:
    app = typer.Typer()
    assert group(app, "train", "Train.") is group(app, "train", "Again.")
    assert group(app, "bench", "Measure.") is not group(app, "train", "Train.")


def test_help_shows_what_is_for_what() -> None:
    """Every command of ours has a panel, and no panel names a command that is not there."""
    named = {name for names in PANELS.values() for name in names}
    assert set(get_command(build()).commands) == named  # type: ignore[attr-defined]
    said = CliRunner().invoke(build(), ["--help"]).output
    places = [said.index(f"─ {panel} ─") for panel in ("Use", "Choose and measure", "Train")]
    assert places == sorted(places) and said.index(" generate ") < said.index(" methods ") < said.index(" train ")


def weights(folder: Path, promised: int) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, promised]}}).encode()
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))


def test_doctor_opens_every_header(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(shipped, "folder", lambda name: tmp_path)
    weights(tmp_path / "text-14m", promised=8)
    run = CliRunner().invoke(build(), ["doctor"])
    assert run.exit_code == 0 and "all well" in run.output and "text-14m" in run.output and "torch" in run.output
    assert "kernels       the CPU runs the torch references" in run.output or torch.cuda.is_available()
    weights(tmp_path / "text-1m", promised=16)
    run = CliRunner().invoke(build(), ["doctor"])
    assert run.exit_code == 1 and "PROBLEM" in run.output and "model.safetensors is damaged" in run.output


def test_doctor_lists_broken_plugins(install, reload) -> None:
    install("broken", "raise RuntimeError('out of order')")
    reload()
    run = CliRunner().invoke(build(), ["doctor"])
    assert run.exit_code == 1 and "plugin broken: RuntimeError: out of order" in run.output


def test_doctor_examines_a_model_and_a_head() -> None:
    run = CliRunner().invoke(build(), ["doctor", "mmspec/text-14m", "--drafter", "mmspec/text-14m-eagle3"])
    assert run.exit_code == 0, run.output
    for line in ("trees         8 nodes behind 24 tokens", "padded rows   logits", "guesses of 6", "behind 64 tokens"):
        assert line in run.output


def test_doctor_goes_through_all_lengths_and_says_what_is_refused(tmp_path: Path) -> None:
    """Windows in slots below and above what the check of first use crosses; a bias that writes into padding."""
    neo, mamba = REFUSED["gpt_neo"].recipe, RECURRENT["mamba"]
    wide, bias = {**neo.config, "window_size": 200}, {**mamba.config, "use_bias": True}
    scaled(dataclasses.replace(neo, config=wide).model()).save_pretrained(tmp_path / "slots")
    scaled(dataclasses.replace(mamba, config=bias).model()).save_pretrained(tmp_path / "biased")
    slots, biased = (CliRunner().invoke(build(), ["doctor", str(tmp_path / name)]) for name in ("slots", "biased"))
    assert slots.exit_code == biased.exit_code == 1
    assert "in a text of more than 200 units (window_size" in slots.output and "padded rows" in slots.output
    assert "trees" in biased.output and "depends on the padding" in biased.output


def test_shipped_models_are_found_by_name(tmp_path: Path, monkeypatch) -> None:
    assert shipped.folder("assets").is_dir() and shipped.folder("model_cards").is_dir()
    monkeypatch.setattr(shipped, "folder", lambda name: tmp_path)
    (tmp_path / "text-14m").mkdir()
    assert shipped.asset("text-14m") == tmp_path / "text-14m"
    with pytest.raises(ValueError, match="did you mean 'text-14m'"):
        shipped.asset("text-14")
