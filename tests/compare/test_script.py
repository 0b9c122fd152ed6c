"""`mmspec verify` on whole scripts: one that passes, one that a planted lossy method is caught on, and broken ones."""

import io
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from transformers.generation.utils import GenerationMixin
from typer.testing import CliRunner

from mmspec import shipped
from mmspec.cli.app import build
from mmspec.compare import children, runner
from mmspec.compare.recording import RecordedCall, save
from mmspec.registry import installed

HONEST = """
import sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer

folder, tokens = sys.argv[1], int(sys.argv[2])
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
one = tokenizer("def area(radius):", return_tensors="pt", return_token_type_ids=False)
print(tokenizer.decode(model.generate(**one, max_new_tokens=tokens, do_sample=False)[0]))
torch.manual_seed(1)
out = model.generate(**one, max_new_tokens=tokens, do_sample=True, return_dict_in_generate=True)
print(list(out.keys()), tokenizer.decode(out.sequences[0]))
texts = ["import os", "KING RICHARD II:\\nWhat say you", "x"]
batch = tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False)
print(tokenizer.batch_decode(model.generate(**batch, max_new_tokens=tokens, do_sample=True, temperature=0.8)))
model.generate(one["input_ids"], max_new_tokens=tokens, do_sample=False, streamer=TextStreamer(tokenizer))
model.generate(**one, max_new_tokens=4, num_beams=2, do_sample=False)
"""

SMALL = """
import sys
import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
ids = torch.arange(40, 52)[None]
first = model.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=-1)
second = model.generate(first, max_new_tokens=4, do_sample=False, return_dict_in_generate=True, eos_token_id=-1)
print(second.sequences.tolist(), sorted(second.keys()))
"""

LOSSY = """
# Says that it is invariant, and accepts whatever is drafted.
import mmspec
from mmspec.core.rules.match import Match
from mmspec.core.rules.rule import walk_where


@mmspec.hookimpl
def mmspec_components():
    yield mmspec.RuleSpec(
        name="yes", factory="planted:Yes", needs={"discrete"}, exactness="invariant", summary="Accepts."
    )
    yield mmspec.DrafterSpec(
        name="sevens", factory="planted:make", needs={"discrete"}, offers={"chain"}, summary="Sevens."
    )
    yield mmspec.MethodSpec(
        name="planted", drafter="sevens", rule="yes", exactness="invariant", summary="Lies."
    )


class Sevens:
    def propose(self, tokens, k):
        return [[7] if len(row) == 15 else [] for row in tokens]


def make():
    from mmspec.core.drafters.host import HostDrafterAdapter

    return HostDrafterAdapter(Sevens())


class Yes(Match):
    def accept(self, draft, scores, round):
        honest = super().accept(draft, scores, round)
        return honest if draft.nodes == 1 else walk_where(draft, draft.valid[:, 1:], honest.drawn)
"""


def mmspec(*arguments: object) -> Result:
    return CliRunner().invoke(build(), [str(argument) for argument in arguments], env={"COLUMNS": "160"})


@pytest.fixture
def script(tmp_path: Path):
    def write(text: str) -> Path:
        (tmp_path / "script.py").write_text(text)
        return tmp_path / "script.py"

    return write


def in_this_process(command: list[str], out: Any, err: Any, environment: Any) -> int:
    """Runs a script here, where all is imported, as a process of its own would; nothing of the run stays."""
    task = Path(command[-1])
    task.write_text(json.dumps({**json.loads(task.read_text()), "plugins": []}))  # they are registered here already
    to, errors = (io.TextIOWrapper(file, write_through=True) for file in (out, err))
    state = random.getstate()
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng(), redirect_stdout(to), redirect_stderr(errors):
        patch.setattr(GenerationMixin, "generate", GenerationMixin.generate)
        for name in ("argv", "path", "meta_path"):
            patch.setattr(sys, name, [*getattr(sys, name)])
        code = runner.main(task)
    random.setstate(state)
    to.detach(), errors.detach()  # the files are their opener's to close
    return code


@pytest.fixture(params=["in this process", pytest.param("processes", marks=pytest.mark.slow)])
def runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where scripts run. Those of the tests below that call no model have processes in the fast tier, too."""
    if request.param == "in this process":
        monkeypatch.setattr(children, "run_in_group", in_this_process)


def test_a_script_of_plain_calls_passes_and_a_refused_call_is_left_alone(script, runs: None) -> None:
    run = mmspec("verify", script(HONEST), "--method", "prompt-lookup", "-k", 3, "--", shipped.asset("text-1m"), 24)
    print(run.output)
    assert run.exit_code == 4
    lines = run.stdout.splitlines()
    assert [line.split()[2:5] for line in lines[1:5]] == [["1", "×", "24"]] * 2 + [["3", "×", "24"], ["1", "×", "24"]]
    assert all(line.endswith("same") or line.rstrip().endswith("same") for line in lines[1:5])
    assert "left alone: num_beams=2: beam search" in run.stdout
    assert "stdout: same" in lines and "method: prompt-lookup" in lines
    assert lines[-1].startswith(
        "EQUAL BUT FOR WHAT WAS LEFT ALONE: 4 calls equal, 0 differ, 0 not supported, 1 left alone (num_beams=2: beam"
    )
    assert "acceptance length 1." in run.stdout


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[Path]:
    """A one-file plugin; the registry of this process forgets it after the test."""
    (tmp_path / "planted.py").write_text(LOSSY)
    yield tmp_path / "planted.py"
    installed().unregister("planted")
    del sys.modules["planted"]


def test_a_planted_lossy_method_is_caught(script, planted: Path, runs: None) -> None:
    run = mmspec(
        *("--plugin", planted, "verify", script(SMALL), "--method", "planted"),
        *("--", shipped.asset("text-1m")),
    )
    print(run.output)
    assert run.exit_code == 1
    assert "row 0, new token 3: got 7 instead of " in run.stdout and "margin" in run.stdout
    assert "it began with another prompt" in run.stdout and "as calls before differ" in run.stdout
    assert "NOT EQUAL: 0 calls equal, 2 differ, 0 not supported, 0 left alone; stdout follows" in run.stdout


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("print(1)\nraise RuntimeError('out of order')", 2, "RuntimeError: out of order"),
        ("import sys\nsys.exit('no such model')", 2, "no such model\nmmspec: the script failed without mmspec"),
        ("def inner(): 1 / 0\ninner()", 2, 'script.py", line 1, in inner'),
    ],
)
def test_a_script_that_fails_shows_its_own_traceback(script, text: str, code: int, message: str) -> None:
    run = mmspec("verify", script(text))
    assert run.exit_code == code and message in run.stderr and "runpy" not in run.stderr


def test_mistakes_are_told(script, tmp_path: Path) -> None:
    for arguments, message in (
        (("verify", script("print('hello')")), "makes no generate call"),
        (("verify", tmp_path / "none.py"), "there is no script"),
        (("verify", script("1"), "--method", "prompt-lokup"), "did you mean 'prompt-lookup'"),
        (("verify", script("1"), "--reference", "plane"), "did you mean 'plain'"),
        (("verify", script("1"), "--reference", "plain", "--method", "rsd"), "promises the distribution, not the path"),
    ):
        run = mmspec(*arguments)
        assert isinstance(run.exception, ValueError) and message in str(run.exception)


def test_a_script_sees_what_it_would_see(script, tmp_path: Path) -> None:
    """Its arguments, its folder first on the path, its name, and no module that it has not imported."""
    (tmp_path / "beside.py").write_text("HERE = 1")
    text = """
        import os, random, sys
        from beside import HERE
        heavy = [name for name in ("torch", "numpy", "transformers") if name in sys.modules]
        with open(sys.argv[1], "a") as file:
            print(sys.argv[2:], __name__, heavy, random.random(), os.environ["PYTHONHASHSEED"], file=file)
    """
    lines = tmp_path / "lines"
    for _ in range(2):
        mmspec("verify", script("\n".join(line[8:] for line in text.splitlines())), "--", lines, "--flag", "x")
    first, second = lines.read_text().splitlines()
    assert first == second and first.startswith("['--flag', 'x'] __main__ [] 0.")
    assert first.endswith(os.environ.get("PYTHONHASHSEED", "0"))


@pytest.mark.parametrize(
    ("fails", "order", "code"),
    [(None, "plain ours plain ours", 0), ("ours", "plain ours", 1), ("plain", "plain", 2)],
)
def test_runs_take_turns_and_a_failure_is_whose_it_is(
    script, monkeypatch: pytest.MonkeyPatch, fails: str | None, order: str, code: int
) -> None:
    ran = []

    def child(command: list[str], out, err, environment) -> int:
        task = json.loads(Path(command[-1]).read_text())
        ran.append("plain" if task["enable"] is None else "ours")
        save(Path(task["folder"]), [RecordedCall(1, "Llama", True, 1, "", 1.0)], {1: torch.tensor([[1, 2]])})
        err.write(b"Traceback: out of order\n" if ran[-1] == fails else b"a warning\n")
        return int(ran[-1] == fails)

    monkeypatch.setattr(children, "run_in_group", child)
    run = mmspec("verify", script("1"), "--repeats", 2)
    assert run.exit_code == code and " ".join(ran) == order
    assert ("Traceback: out of order" in run.stderr) == (fails is not None) and "a warning" not in run.output


RESTLESS = """
# Starts somebody who holds the pipe too, says so, and works for ever.
import os, subprocess, sys
pipe = os.open(sys.argv[1], os.O_WRONLY)
subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], pass_fds=[pipe])
os.write(pipe, b"at work")
if sys.argv[2] == "ends":
    sys.exit()
import signal
signal.pause()
"""


@pytest.fixture
def started(script, tmp_path: Path) -> Iterator[Callable[[str], tuple[Any, int]]]:
    """`started(what)`: a real `mmspec verify` whose script is at work, and the pipe that all whom it started hold."""
    (tmp_path / "temporary").mkdir()
    os.mkfifo(tmp_path / "pipe")
    open_ones = []

    def start(what: str) -> tuple[Any, int]:
        process = subprocess.Popen(
            [sys.executable, "-m", "mmspec", "verify", script(RESTLESS), "--", tmp_path / "pipe", what],
            env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A shell that runs the suite in the background makes its children deaf to CTRL-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        pipe = os.open(tmp_path / "pipe", os.O_RDONLY)  # waits for who writes
        open_ones.append((process, pipe))
        assert os.read(pipe, 100) == b"at work"
        return process, pipe

    yield start
    for process, pipe in open_ones:
        process.kill()
        process.communicate()
        os.close(pipe)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_whoever_stops_it_stops_the_script_and_whom_that_started(
    started, tmp_path: Path, number: int, code: int
) -> None:
    process, pipe = started("goes on")
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == code and b"Traceback" not in errors, errors.decode()
    assert list((tmp_path / "temporary").iterdir()) == []
    assert os.read(pipe, 100) == b"", "nobody holds the pipe any more"


def test_what_a_script_leaves_running_ends_with_it(started, tmp_path: Path) -> None:
    process, pipe = started("ends")
    assert os.read(pipe, 100) == b""
    assert process.wait() == 2 and list((tmp_path / "temporary").iterdir()) == []


def test_a_call_that_only_transformers_can_do_is_no_pass(script, monkeypatch: pytest.MonkeyPatch) -> None:
    def child(command: list[str], out, err, environment) -> int:
        task = json.loads(Path(command[-1]).read_text())
        calls = [RecordedCall(number, "Llama", True, 1, "", 1.0) for number in (1, 2)]
        if task["enable"] is not None:
            calls[1].left_alone = "no such thing"
        save(Path(task["folder"]), calls, {1: torch.tensor([[1, 2]]), 2: torch.tensor([[1, 2]])})
        return 0

    monkeypatch.setattr(children, "run_in_group", child)
    run = mmspec("verify", script("1"))
    assert run.exit_code == 1 and "not supported: no such thing" in run.stdout
    wanted = "NOT SUPPORTED: 1 calls equal, 0 differ, 1 not supported (no such thing), 0 left alone; stdout same"
    assert run.stdout.splitlines()[-1] == wanted


@pytest.mark.parametrize("same", [True, False])
def test_the_reference_plain_runs_mmspec_both_times(script, monkeypatch: pytest.MonkeyPatch, same: bool) -> None:
    ran = []

    def child(command: list[str], out, err, environment) -> int:
        task = json.loads(Path(command[-1]).read_text())
        assert task["enable"]["shape"] == "one" and task["enable"]["method"] == "suffix" and task["judge"] is None
        ran.append("plain" if task["plainly"] else "ours")
        ids = torch.tensor([[1, 2 if same or task["plainly"] else 3]])
        save(Path(task["folder"]), [RecordedCall(1, "Llama", True, 1, "", 1.0, half=True, width=9)], {1: ids})
        return 0

    monkeypatch.setattr(children, "run_in_group", child)
    run = mmspec("verify", script("1"), "--method", "suffix", "--reference", "plain")
    assert ran == ["plain", "ours", *([] if same else ["plain"])] and run.exit_code == (0 if same else 1)
    assert "compared: to the bit with plain of width 9" in run.stdout and "half precision" not in run.stdout
    assert "all passes of both have 9 nodes" in run.stdout or same
    assert "with mmspec, plainly" in run.stderr and "without mmspec" not in run.stderr


def test_half_precision_says_what_is_promised(script, monkeypatch: pytest.MonkeyPatch) -> None:
    def child(command: list[str], out, err, environment) -> int:
        task = json.loads(Path(command[-1]).read_text())
        ids = torch.tensor([[1, 3 if task["enable"] else 2]])
        save(Path(task["folder"]), [RecordedCall(1, "Llama", True, 1, "", 1.0, half=True)], {1: ids})
        return 0

    monkeypatch.setattr(children, "run_in_group", child)
    run = mmspec("verify", script("1"))
    assert run.exit_code == 2 and "promised in float32 only" in run.stdout
    assert run.stdout.splitlines()[-1].startswith("NOTHING CAN BE SAID: ids differ in half precision")


@pytest.mark.slow
def test_a_bfloat16_script_equals_plain_of_one_shape_and_a_planted_method_does_not(script, planted: Path) -> None:
    half = SMALL.replace("float32", "bfloat16")
    arguments = ("verify", script(half), "--reference", "plain")
    honest = mmspec(*arguments, "--method", "suffix", "--", shipped.asset("text-1m"))
    assert honest.exit_code == 0 and "EQUAL, byte for byte: 2 calls equal" in honest.stdout, honest.output
    lying = mmspec("--plugin", planted, *arguments, "--method", "planted", "--", shipped.asset("text-1m"))
    assert lying.exit_code == 1 and "NOT EQUAL" in lying.stdout, lying.output
