"""The code is a light wheel that works alone; the shipped models are a second one, which it finds.

Newcomers begin there: who has a model, prompts, a picture model, a drafter, a head to train, a server, or reads.
"""

import json
import re
import shlex
import subprocess
import zipfile
from pathlib import Path

import pytest

from mmspec import __version__
from tests.support.pages import blocks, fenced
from tests.support.wheels import CODE, MODELS, Environment, wheel_of

MISSING = "the shipped models are not installed: pip install 'mmspec[models]', or in a clone pip install ./assets"
OWN = """
from transformers import GPT2Config, GPT2LMHeadModel
import mmspec, torch

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=13, n_layer=1, n_head=2, n_embd=16, n_positions=64)).eval()
prompt = torch.tensor([[1, 2, 3]])
stock = model.generate(prompt, max_new_tokens=20, do_sample=False, pad_token_id=0)
with mmspec.enable(model, "auto") as spec:
    assert model.generate(prompt, max_new_tokens=20, do_sample=False, pad_token_id=0).tolist() == stock.tolist()
assert spec.report.rounds < 19

from mmspec.cli.app import build
assert build()(["doctor"], standalone_mode=False) == 0
"""


EACH = """
import contextlib, io, json
from mmspec.cli.app import build
from mmspec.cli.boundary import run

COMMANDS = [
    *("demo", "demo text", "demo image", "demo continuous", "demo ssm", "demo video"),
    *("generate text x", "generate image x", "generate image --words", "generate continuous x"),
    *("bench text", "bench image", "bench continuous", "bench ssm", "bench video"),
    "methods --for mmspec/text-1m",
]

def said(command):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as error:
        status = run(lambda: build()(command.split(), standalone_mode=False))
    return status, out.getvalue(), error.getvalue()

print(json.dumps({command: said(command) for command in COMMANDS}))
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel of the code alone."""
    return Environment(tmp_path_factory.mktemp("code"), CODE)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with both wheels."""
    return Environment(tmp_path_factory.mktemp("both"), CODE, MODELS)


def members(wheel: Path) -> list[str]:
    return zipfile.ZipFile(wheel).namelist()


def test_the_code_is_light_and_holds_no_models(code: Environment) -> None:
    (wheel,) = code.wheels.iterdir()
    assert wheel.stat().st_size < 3_000_000
    tops = {name.split("/")[0] for name in members(wheel)}
    plugins = {f"mmspec_{name}" for name in ("text", "image", "continuous", "ssm", "video", "zoo")}
    assert tops == {"mmspec", *plugins, f"mmspec-{__version__}.dist-info"}
    assert not [name for name in members(wheel) if name.endswith((".safetensors", ".bench.json"))]


@pytest.mark.slow
def test_the_models_hold_no_code_and_have_the_same_version(tmp_path: Path) -> None:
    wheel = wheel_of(MODELS, tmp_path)
    assert wheel.name == f"mmspec_models-{__version__}-py3-none-any.whl"
    assert [name for name in members(wheel) if name.endswith(".py")] == []
    inside = {tuple(name.split("/")[1:3]) for name in members(wheel)}
    assert {("assets", "text-14m"), ("assets", "emoji"), ("model_cards", "text-14m.bench.json")} <= inside


@pytest.mark.slow
def test_without_the_models_a_command_that_needs_them_says_so_in_one_line(code: Environment) -> None:
    run = code.python("-c", EACH)
    assert run.returncode == 0, run.stderr
    said = json.loads(run.stdout.splitlines()[-1])
    assert len(said) == 17
    for command, (status, printed, error) in said.items():
        assert (status, printed) == (2, ""), command
        assert error.startswith("mmspec: ") and error.endswith(f"{MISSING}\n") and error.count("\n") == 1, command


@pytest.mark.slow
def test_without_the_models_everything_else_works(code: Environment) -> None:
    assert code.python("-m", "mmspec", "methods", "suffix").returncode == 0
    run = code.python("-c", OWN)
    assert run.returncode == 0, run.stderr
    assert MISSING in run.stdout and run.stdout.endswith("all well\n"), run.stdout


@pytest.mark.slow
def test_with_the_models_they_are_found_where_they_were_installed(both: Environment) -> None:
    script = "import mmspec.shipped as s; print(s.asset('text-1m'), s.folder('model_cards'))"
    assets, cards = both.python("-c", script).stdout.split()
    assert Path(assets) == both.site / "mmspec_models" / "assets" / "text-1m"
    assert Path(cards) == both.site / "mmspec_models" / "model_cards"
    run = both.python("-m", "mmspec", "generate", "text", "--model", "mmspec/text-1m", "--max-new-tokens", "5", "def")
    assert run.returncode == 0 and run.stdout.startswith("def"), run.stderr
    doctor = both.python("-m", "mmspec", "doctor").stdout
    assert f"mmspec-models {__version__}" in " ".join(doctor.split()) and "text-14m, " in doctor


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted((CODE / "docs" / "start").glob("*.md")), ids=lambda page: page.stem)
def test_a_start_page_runs_as_it_is_written(both: Environment, page: Path) -> None:
    """In a clean environment, without the source tree."""
    ran = both.python("-c", "\n".join(blocks(page)))
    assert ran.returncode == 0, ran.stderr


def typed(environment: Environment, line: str, folder: str = "") -> str:
    """What a line of a page prints in a folder there; the environment's own Python, pytest and `mmspec` are meant."""
    program, *words = shlex.split(line, comments=True)
    ran = environment.python(*({"python": []}.get(program, ["-m", program])), *words, folder=folder)
    assert ran.returncode == 0, f"{line}\n{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}"
    return ran.stdout + ran.stderr


def lines_of(page: Path, *languages: str) -> list[str]:
    """The lines of a page's commands, without those that install."""
    lines = [line for block in fenced(page) if block.language in languages for line in block.code.splitlines()]
    return [line for line in lines if line and not line.startswith("pip ")]


@pytest.mark.slow
def test_who_has_a_drafter_gets_through_the_page_for_authors(both: Environment) -> None:
    page = CODE / "docs" / "authors" / "README.md"
    first, second, *_ = blocks(page)
    (both.folder / "my_markov.py").write_text(first)
    ran = both.python("-c", second)
    assert ran.returncode == 0, ran.stderr
    said = [typed(both, line) for line in lines_of(page, "console")]
    assert len(said) == 5 and "def main(" in said[2]


@pytest.mark.slow
def test_who_has_a_picture_model_gets_through_the_plugin_that_new_writes(both: Environment) -> None:
    typed(both, "mmspec new discs --kind picture")
    folder = both.folder / "mmspec-discs"
    both.install(folder)
    said = [typed(both, line, folder.name) for line in lines_of(folder / "README.md", "bash")]
    assert len(said) == 4 and "3 passed" in said[1] and "64 units" in said[3]


@pytest.mark.slow
def test_who_trains_a_head_types_what_the_last_line_says(both: Environment) -> None:
    texts = [json.dumps({"text": f"def f{i}(x):\n    return x + {i}\n"}) for i in range(60)]
    (both.folder / "texts.jsonl").write_text("\n".join(texts) + "\n")
    numbers = "--steps 3 --batch 2 --context 16 --depth 2 --intermediate 16"
    train = "mmspec train drafter --target mmspec/text-1m --kind eagle3 --data texts.jsonl --work work --out head"
    said = typed(both, f"{train} {numbers}")
    assert "Tried here on two held-out beginnings: 96 tokens in " in said
    last = re.search(r"^Next: (.*)$", said, re.MULTILINE)[1]
    assert "eagle (invariant)" in typed(both, f"{last} --max-new-tokens 8")


@pytest.mark.slow
def test_who_serves_models_is_asked_as_the_page_says(both: Environment) -> None:
    page = CODE / "docs" / "engines" / "serve.md"
    (command,), (client,) = lines_of(page, "console"), [b.code for b in fenced(page) if b.language == "python"]
    serve = [str(both.folder / "env" / "bin" / "python"), "-m", *shlex.split(command), "--port", "0"]
    with subprocess.Popen(serve, cwd=both.folder, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = next(found[0] for line in server.stdout if (found := re.search(r"http://\S+/v1", line)))
            code = client.replace("http://127.0.0.1:8000/v1", address)
            ran = both.python("-c", f"import openai\n{code}\nprint(said.choices[0].text, len(drawn.data))")
            assert ran.returncode == 0 and ran.stdout.endswith(" 2\n"), ran.stderr
        finally:
            server.terminate()


@pytest.mark.slow
def test_who_reads_finds_methods_papers_and_what_fits(both: Environment) -> None:
    for line in ("mmspec methods", "mmspec methods eagle", "mmspec methods --for mmspec/text-1m", "mmspec plugins"):
        assert len(typed(both, line).splitlines()) > 5
    assert "arxiv.org/abs/2503.01840" in typed(both, "mmspec methods eagle")
