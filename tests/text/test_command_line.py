"""`mmspec generate text` and `mmspec demo text`, on a saved tiny model with a tokenizer made here; CTRL-C."""

import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from mmspec import cli
from mmspec.bench.race import Run, Track, race
from mmspec.cli.app import build
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.kits.text import demo
from mmspec_text.drafters.prompt_lookup import PromptLookup

PROMPT = "the cat and the dog and the "
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def folder(make_llama: Callable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of bytes."""
    place = tmp_path_factory.mktemp("bytes")
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator([PROMPT], trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False))
    PreTrainedTokenizerFast(tokenizer_object=bpe).save_pretrained(place)
    make_llama(vocab_size=bpe.get_vocab_size()).save_pretrained(place)
    return place


def stock_text(folder: Path, new: int, seed: int, sampling: dict[str, Any], dtype: torch.dtype = torch.float32) -> str:
    model, tokenizer = load_model(str(folder), dtype=dtype), load_tokenizer(str(folder))
    torch.manual_seed(seed)
    inputs = tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False)
    return str(tokenizer.decode(model.generate(**inputs, max_new_tokens=new, **sampling)[0]))


def invoke(folder: Path, *arguments: str) -> Any:
    return CliRunner().invoke(build(), ["generate", "text", PROMPT, "--model", str(folder), *arguments])


@pytest.mark.parametrize(
    "how",
    [
        (),
        ("--method", "plain"),
        ("--method", "prompt-lookup", "--opt", "min_ngram=1", "-k", "3"),
        ("--method", "draft-model", "--drafter", "FOLDER"),
        ("--method", "draft-model", "--opt", "model=FOLDER"),
    ],
)
def test_the_text_is_that_of_transformers_for_the_seed(folder: Path, how: tuple[str, ...]) -> None:
    how = tuple(word.replace("FOLDER", str(folder)) for word in how)
    run = invoke(folder, *how, "--max-new-tokens", "25", "--seed", "5", "--top-p", "0.9", "--top-k", "40")
    assert run.exit_code == 0, run.output
    sampling = dict(do_sample=True, temperature=0.8, top_p=0.9, top_k=40)
    assert run.stdout == stock_text(folder, 25, 5, sampling) + "\n"
    assert "25 units" in run.stderr and "acceptance length" in run.stderr


def test_temperature_zero_is_greedy(folder: Path) -> None:
    run = invoke(folder, "--max-new-tokens", "25", "--temperature", "0")
    assert run.stdout == stock_text(folder, 25, 0, dict(do_sample=False)) + "\n"


def test_weights_of_another_dtype(folder: Path) -> None:
    run = invoke(folder, "--method", "plain", "--max-new-tokens", "8", "--temperature", "0", "--dtype", "float64")
    assert run.stdout == stock_text(folder, 8, 0, dict(do_sample=False), torch.float64) + "\n"


def message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The output of a user's mistake: one line, exit code 2."""
    monkeypatch.setattr(sys, "argv", ["mmspec", "generate", "text", *arguments])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    said = capsys.readouterr()
    assert exit.value.code == 2 and said.out == "" and "Traceback" not in said.err
    return said.err


def test_mistakes_are_one_line_and_exit_code_2(folder: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    wrong = {
        ("",): "the prompt is empty",
        (PROMPT, "--model", "mmspec/no-such-model"): "no shipped model is called 'no-such-model'",
        (PROMPT, "--model", str(tmp_path)): "has no *.safetensors file",
        (PROMPT, "--model", "nobody/nothing"): "neither a folder here nor to be had from the hub",
        (PROMPT, "--model", str(folder), "--method", "promt-lookup"): "did you mean 'prompt-lookup'",
        (PROMPT, "--model", str(folder), "--rule", "blok"): "did you mean 'block'",
        (PROMPT, "--model", str(folder), "--dtype", "float61"): "did you mean 'float64'",
        (PROMPT, "--model", str(folder), "--opt", "max_match=ten"): "option 'max_match' is 'ten', allowed is int",
        (PROMPT, "--model", str(folder), "--opt", "max_ngram"): "options are written key=value",
        (PROMPT * 80, "--model", str(folder)): "tokens and the model's context is 512; shorten it",
    }
    for arguments, says in wrong.items():
        said = message(monkeypatch, capsys, *arguments)
        assert said.startswith("mmspec: ") and says in said
    assert "--top-p" in message(monkeypatch, capsys, PROMPT, "--top-p", "2")


def test_ctrl_c_prints_what_there_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    propose, known = PromptLookup.propose, []

    def interrupted(self: PromptLookup, state: Any, k: int, noise: Any) -> Any:
        known[:] = [state.history[0, : state.prompt_length + state.host.emitted[0]]]
        if state.host.emitted[0] > 12:
            raise KeyboardInterrupt
        return propose(self, state, k, noise)

    monkeypatch.setattr(PromptLookup, "propose", interrupted)
    run = invoke(folder, "--method", "prompt-lookup", "--max-new-tokens", "40", "--seed", "5")
    assert run.exit_code == 130
    text, _, note = run.stdout.rpartition("\n(")
    assert "stopped; this is what there is" in note
    # All of it, the last word too; and it is what an undisturbed run opens with.
    assert text.removesuffix("\n") == load_tokenizer(str(folder)).decode(known[0])
    assert stock_text(folder, 40, 5, dict(do_sample=True, temperature=0.8, top_k=0)).startswith(text.removesuffix("\n"))


#: The command line without the plugins of the source tree: the core, and the copy beside it.
ALONE = f"""
import sys
sys.path[:] = [p for p in sys.path if p != {str(ROOT / "plugins")!r}]
from mmspec.cli import main
main()
"""


def test_a_copied_plugin_generates_until_a_real_ctrl_c(folder: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(ROOT / "plugins" / "mmspec_text", site / "mmspec_text")
    info = site / "mmspec_text-7.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mmspec-text\nVersion: 7.0\n")
    (info / "entry_points.txt").write_text("[mmspec]\ntext = mmspec_text.plugin\n")
    # More than a pipe holds, so that it cannot have ended, however late the signal comes.
    arguments = ["generate", "text", PROMPT, "--model", str(folder), "--max-new-tokens", "200000", "--seed", "5"]
    process = subprocess.Popen(
        [sys.executable, "-c", ALONE, *arguments],
        env={**os.environ, "PYTHONPATH": str(site), "COLUMNS": "200"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # `communicate` would not see what a buffer holds
        # A shell that runs the suite in the background makes its children deaf to CTRL-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert process.stdout is not None
        opening = b""
        while len(opening) < len(PROMPT) + 10:  # then it is at work: ten bytes of its own are out
            opening += (part := process.stdout.read(100))
            assert part, "it ended"
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 130, errors.decode()
    text, _, note = (opening + rest).decode(errors="replace").rpartition("\n(")
    assert "stopped; this is what there is" in note and "Traceback" not in errors.decode()
    text = text.removesuffix("\n")[: len(PROMPT) + 60]  # a machine that is slow to stop it need not read it all again
    whole = stock_text(folder, len(text.encode()), 5, dict(do_sample=True, temperature=0.8, top_k=0))
    # The last character may be cut off in the middle of its bytes.
    assert len(text) > len(PROMPT) + 2 and whole.startswith(text[:-1])


@pytest.fixture
def small_demo(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "load_model", lambda name: load_model(str(folder)))
    monkeypatch.setattr(demo, "load_tokenizer", lambda name: load_tokenizer(str(folder)))
    monkeypatch.setattr(demo, "NEW_TOKENS", 12)
    monkeypatch.setenv("COLUMNS", "160")


def test_the_demo_shows_every_method_with_its_numbers(small_demo: None) -> None:
    run = CliRunner().invoke(build(), ["demo", "text"])
    assert run.exit_code == 0, run.exception
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in run.output.splitlines() if "│" in line]
    rows = [line for line in lines if len(line) == 6]
    assert [row[0] for row in rows] == ["transformers", "plain", "prompt-lookup", "draft-model"] * 2
    for number, (name, exactness, length, seconds, *speedups) in enumerate(rows):
        bases = [float(rows[number // 4 * 4 + base][3]) for base in (0, 1)]
        shown = [f"{base / float(seconds):.2f}" for base in bases]
        assert speedups == shown, "of the seconds that are shown: transformers' and plain decoding's"
        assert (exactness, length) == ("", "") if name == "transformers" else exactness == "invariant"
        assert name != "plain" or float(length) == 1
        # The drafter is the target itself here: every draft of 4 is accepted.
        assert name != "draft-model" or float(length) > 3
    assert run.output.count("transformers, plain, prompt-lookup, draft-model wrote:") == 2
    assert all(title in run.output for title in ("Python, greedy, seed 0", "Shakespeare, T = 0.8, seed 0"))
    assert run.output.count("class Stack:") == run.output.count("KING RICHARD II:") == 1


def test_the_demo_asks_a_real_model_where_one_was_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Any]()
    monkeypatch.setattr(demo, "run_demo", lambda *args: asked.append(args))
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path))
    assert "mmspec fetch smollm2" in CliRunner().invoke(build(), ["demo", "text"]).output
    (tmp_path / "smollm2").mkdir()
    assert "mmspec fetch" not in CliRunner().invoke(build(), ["demo", "text"]).output
    (shipped,), (fetched, methods, questions) = asked
    assert (shipped, fetched) == ("mmspec/text-14m", "smollm2") and list(methods) == ["plain", "auto"]
    assert all("SmolLM2" in title for title, _, _ in questions)


def test_an_answer_ends_where_the_model_ends_it(
    small_demo: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every method."""
    model, prompt = load_model(str(folder)), [("it", PROMPT, 0.0)]
    tracks = list[Any]()
    monkeypatch.setattr(demo, "load_model", lambda name: model)
    monkeypatch.setattr(demo, "race", lambda *how: tracks.append(race(*how)) or tracks[-1])
    demo.run_demo("it", {"plain": {}, "prompt-lookup": {"k": 3}}, prompt)
    (whole,) = {tuple(track.runs[-1][0].units[0].tolist()) for track in tracks[0].values()}
    end = next(place for place in range(1, len(whole)) if whole[place] not in whole[:place])
    model.generation_config.eos_token_id = whole[end]
    demo.run_demo("it", {"plain": {}, "prompt-lookup": {"k": 3}}, prompt)
    assert {tuple(track.runs[-1][0].units[0].tolist()) for track in tracks[1].values()} == {whole[: end + 1]}


def test_the_demo_tells_when_a_text_differs() -> None:
    tokens = torch.tensor([1, 2])
    tracks = {name: Track([[Run(1.0, [tokens])]]) for name in ("transformers", "plain", "prompt-lookup")}
    assert list(demo._by_text(tracks).values()) == [["transformers", "plain", "prompt-lookup"]]
    tracks["prompt-lookup"] = Track([[Run(1.0, [tokens.flip(0)])]])
    assert list(demo._by_text(tracks).values()) == [["transformers", "plain"], ["prompt-lookup"]]


def test_advice_on_kernels_stays_out_of_the_demo_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    kernels = logging.getLogger("transformers.integrations.hub_kernels")
    notice = "`f` is falling back to its reference PyTorch implementation because `mamba_ssm` is not installed."
    with caplog.at_level(logging.WARNING, kernels.name):
        kernels.addHandler(caplog.handler)
        with demo.without_kernel_notices():
            kernels.warning(notice)
            kernels.warning("a kernel is broken")
        kernels.warning(notice)
        kernels.removeHandler(caplog.handler)
    assert {record.getMessage() for record in caplog.records} == {"a kernel is broken", notice}


def test_first_lines() -> None:
    text = "\n".join(f"line {i}" for i in range(20))
    assert demo._first_lines(text).splitlines() == [f"line {i}" for i in range(demo.SHOWN_LINES)] + ["…"]
    assert demo._first_lines("a\nb") == "a\nb"
