"""Commands that plugins add; `train text` and what CTRL-C leaves; `doctor`."""

import inspect
import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from mmspec import shipped
from mmspec.cli.app import build
from mmspec.cli.groups import group

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


def test_plugins_share_a_group() -> None:
    app = typer.Typer()
    assert group(app, "train", "Train.") is group(app, "train", "Again.")
    assert group(app, "bench", "Measure.") is not group(app, "train", "Train.")


def test_train_hands_its_options_to_the_recipe_and_ctrl_c_says_how_to_resume(tmp_path: Path, monkeypatch) -> None:
    from mmspec_text import train

    signature, calls = inspect.signature(train.train), []

    def interrupted(*args, **kwargs) -> None:
        calls.append(signature.bind(*args, **kwargs).arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "train", interrupted)
    prose = tmp_path / "prose.txt"
    prose.write_text("Once.")
    places = ["--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    run = CliRunner().invoke(build(), ["train", "text", "--prose", str(prose), *places, "--steps", "7"])
    assert run.exit_code == 130
    assert "stays loadable" in run.output and "same command again to resume" in run.output
    assert calls[0]["prose_files"] == [prose] and calls[0]["out"] == tmp_path / "out"
    assert calls[0]["recipe"].steps == 7 and calls[0]["recipe"].drafter_steps == train.TextRecipe().drafter_steps
    assert CliRunner().invoke(build(), ["train", "text", "--prose", str(prose), "--steps", "0"]).exit_code == 2
    assert CliRunner().invoke(build(), ["train", "text", "--prose", str(tmp_path / "none")]).exit_code == 2


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


def test_shipped_models_are_found_by_name(tmp_path: Path, monkeypatch) -> None:
    assert shipped.folder("assets").is_dir() and shipped.folder("model_cards").is_dir()
    monkeypatch.setattr(shipped, "folder", lambda name: tmp_path)
    (tmp_path / "text-14m").mkdir()
    assert shipped.asset("text-14m") == tmp_path / "text-14m"
    with pytest.raises(ValueError, match="did you mean 'text-14m'"):
        shipped.asset("text-14")
