"""`python -m tools.train`: options reach the recipe, CTRL-C says how to resume, mistakes are refused before work."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from mmspec.cli import boundary
from tools.train.__main__ import build
from tools.train.text import hybrid, llama

LARGER = 2**63
NEEDS = {"text": "--prose prose.txt", "ssm": "--prose prose.txt", "image": "--data there", "continuous": "--data there"}
NEEDS |= {"video": "", "text-eagle3": "--prose prose.txt", "text-ppd": "--prose prose.txt"}
NEEDS |= {"text-judge": "--prose prose.txt"}
MISTAKES = [
    ("--device banana", "no device 'banana'"),
    ("--out prose.txt", "there can be no folder prose.txt: .*prose.txt is a file"),
    ("--work prose.txt/deeper", "there can be no folder prose.txt/deeper"),
    ("--cards prose.txt", "there can be no folder"),
]
EDGES = [(f"{recipe} {needs} {more}", says) for recipe, needs in NEEDS.items() for more, says in MISTAKES]
NEEDS["flow"] = "--data there"  # it makes no card
EDGES += [(f"flow {NEEDS['flow']} {more}", says) for more, says in MISTAKES[:-1]]
NEEDS["image-eagle"] = "--data there"  # it has no device
EDGES += [(f"image-eagle {NEEDS['image-eagle']} {more}", says) for more, says in MISTAKES[1:]]
EDGES += [
    ("image", "--data"),
    ("image --data gone", "gone"),
    ("image --data there", "emoji64.npz"),
    ("continuous --data there", "emoji64.npz"),
    ("text", "--prose"),
    ("text --prose there", "there"),
    (f"text --prose prose.txt --steps {LARGER}", "at most"),
    ("text --prose prose.txt --steps 0", "--steps"),
    ("ssm --prose prose.txt --hard nan", "--hard"),
    ("ssm --prose prose.txt --hard 2", "--hard"),
    ("video --episodes 0", "10"),
]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "prose.txt").write_text("Once upon a time.")


@pytest.mark.parametrize(("line", "says"), EDGES, ids=[line for line, _ in EDGES])
def test_a_mistake_is_one_line_and_exit_code_2(line: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    command: Any = typer.main.get_command(build())
    assert boundary.run(lambda: command(line.split(), standalone_mode=False)) == 2
    out, err = capsys.readouterr()
    assert re.search(says, err) and err.count("\n") == 1 and out == ""


def test_every_recipe_is_tried() -> None:
    commands: Any = typer.main.get_group(build())
    assert set(commands.commands) == set(NEEDS)


@pytest.mark.parametrize(
    ("line", "module", "recipe"),
    [
        ("text --steps 7", llama, llama.TextRecipe(steps=7)),
        ("ssm --steps 7 --hard 1", hybrid, hybrid.SsmRecipe(steps=7, hard=1.0)),
    ],
)
def test_options_reach_the_recipe_and_ctrl_c_says_how_to_resume(
    line: str, module: Any, recipe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []

    def interrupted(*args: Any) -> None:
        calls.append(args)
        args[1].mkdir()
        (args[1] / "weights.pt").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "train", interrupted)
    run = CliRunner().invoke(build(), [*line.split(), "--prose", "prose.txt", "--out", "out", "--work", "work"])
    assert run.exit_code == 130
    assert "What was done is kept in work; run the same command again to resume" in run.output
    assert calls[0][:4] == (Path("out"), Path("work"), [Path("prose.txt")], recipe)
