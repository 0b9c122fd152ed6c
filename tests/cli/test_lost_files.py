"""Nobody's work is lost: every command that takes a path to write, and all code that removes or replaces a file."""

import inspect
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command_name
from typer.testing import CliRunner

import mmspec
import mmspec_zoo
from mmspec import shipped
from mmspec.cli.app import build
from mmspec_video import commands as video

READ = {
    "chat": ("chat_template",),
    "check": ("parity",),
    "convert": ("files",),
    "generate video": ("frame",),
    "plan": ("result",),
    "run": ("table",),
    "serve": ("chat_template",),
    "train drafter": ("data",),
    "train infill": ("data",),
    "train judge": ("data",),
    "train student": ("clips",),
    "tune": ("prompts",),
    "verify": ("script",),
}
"""Parameters of commands that name what is read."""
PICTURE = "taken.png"
WRITTEN: dict[tuple[str, str], str] = {
    ("new", "out"): "new my-own --out taken",
    ("convert", "out"): "convert oasis taken/letter.txt -o taken",
    ("run", "out"): "run table.jsonl taken --model mmspec/text-1m",
    ("train drafter", "out"): "train drafter --target mmspec/text-1m -o taken --self-generated 9",
    ("train drafter", "work"): "train drafter --target mmspec/text-1m -o other --work taken --self-generated 9",
    ("train judge", "out"): "train judge --target mmspec/text-1m --data table.jsonl -o taken",
    ("train infill", "out"): "train infill --target there --data table.jsonl -o taken",
    ("train infill", "work"): "train infill --target there --data table.jsonl -o other --work taken",
    ("train student", "out"): "train student --target mmspec/four-courts --clips table.jsonl -o taken",
    ("train student", "work"): "train student --target mmspec/four-courts --clips table.jsonl -o other --work taken",
    ("generate video", "out"): "generate video taken/letter.txt --actions 1 -o taken.gif",
    ("demo video", "out"): "demo video -o taken",
    **{(f"generate {kind}", "out"): f"generate {kind} x -o {PICTURE}" for kind in ("image", "continuous")},
    **{(f"generate {kind}", "trace"): f"generate {kind} x --trace {PICTURE}" for kind in ("image", "continuous")},
    **{(f"demo {kind}", "out"): f"demo {kind} -o {PICTURE}" for kind in ("image", "continuous")},
    **{
        (f"bench {kind}", option): f"bench {kind} --{option} {name}"
        for kind in ("text", "ssm", "image", "continuous", "video")
        for option, name in (("json", "taken"), ("plot", PICTURE))
    },
}
"""What is typed where a parameter names something to write, and that is a folder with somebody's work in it."""
SAID = re.compile("is a folder|is not replaced|holds|not those of a run|there is no file|would be written anew")
FOLDERS = ("taken", "taken.md", "taken.gif", PICTURE)
REPLACES = re.compile(r"\.unlink\(|rmtree|os\.(replace|rename|remove|rmdir)|shutil\.move|\.rmdir\(|\.rename\(")
OURS = {
    "files.py": "temporary files of its own, and folders as `save_sealed` left them",
    "tables/run.py": "the recipe that it has just written",
    "api/saved.py": "speculation.json in a folder of a pipeline's, which is written anew",
    "cli/fetch.py": "a wheel in a temporary folder",
}
"""Where something is removed or replaced on a disk, and what it is."""


def commands(app: typer.Typer, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for info in app.registered_commands:
        assert info.callback is not None
        yield " ".join((*path, info.name or get_command_name(info.callback.__name__))), info.callback
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from commands(group.typer_instance, (*path, str(group.name)))


def test_every_path_of_a_command_is_known_to_be_read_or_written() -> None:
    """A new one needs a line above."""
    paths = {
        (name, parameter.name)
        for name, command in commands(build())
        for parameter in inspect.signature(command, eval_str=True).parameters.values()
        if "pathlib.Path" in str(parameter.annotation)
    }
    assert paths == WRITTEN.keys() | {(name, each) for name, own in READ.items() for each in own}


@pytest.mark.parametrize("typed", WRITTEN.values())
def test_a_strangers_file_survives_every_command(typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(video, "MODELS", ())
    for folder in FOLDERS:
        (tmp_path / folder / "inner").mkdir(parents=True)
        (tmp_path / folder / "letter.txt").write_text("Dear")
        (tmp_path / folder / "inner" / "model.safetensors").write_text("weights")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    (tmp_path / "table.jsonl").write_text('{"id": "a", "prompt": "def f(x):"}\n')
    shutil.copy(next(shipped.folder("model_cards").glob("*.bench.json")), tmp_path / "result.json")
    refused = CliRunner().invoke(build(), typed.split()).exception
    assert refused is None or SAID.search(str(refused)), "it is refused for that folder, if at all"
    assert {path: path.read_bytes() for path in before if path.is_file()} == before


def test_what_removes_or_replaces_is_named() -> None:
    roots = [Path(mmspec.__file__).parent, *Path(mmspec_zoo.__file__).parents[1].glob("mmspec_*")]
    found = {
        file.relative_to(root).as_posix()
        for root in roots
        for file in root.rglob("*.py")
        if REPLACES.search(file.read_text())
    }
    assert found == OURS.keys()
