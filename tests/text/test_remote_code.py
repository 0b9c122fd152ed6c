"""Code that comes with a model is never run, whatever is typed; and no message recommends to run it."""

import ast
import io
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import mmspec
from mmspec.hosts.loading import load_as, load_model, load_processor, load_tokenizer
from mmspec.hosts.outline import outline
from mmspec.kits.text.pipeline import TextPipeline
from mmspec_image.janus_pipeline import JanusPipeline

SOURCES = [Path(mmspec.__file__).parent, Path(mmspec.__file__).parents[1] / "plugins"]
EVIL = "from pathlib import Path\nPath({!r}).touch()\nclass Model: pass\nclass Config: pass\nclass Words: pass\n"
CODE = {name: f"evil.{kind}" for name, kind in (("AutoConfig", "Config"), ("AutoModelForCausalLM", "Model"))}
WORDS = {"AutoTokenizer": ["evil.Words", None], "AutoProcessor": "evil.Words"}


@pytest.fixture
def sprung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The trace that the code would leave; and whoever is asked on the terminal says yes."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 99))
    return tmp_path / "sprung"


@pytest.fixture
def evil(tmp_path: Path, sprung: Path) -> Path:
    """A folder whose model, tokenizer and processor are classes of its own."""
    folder = tmp_path / "evil"
    folder.mkdir()
    (folder / "evil.py").write_text(EVIL.format(str(sprung)))
    (folder / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": CODE | WORDS}))
    for file in ("tokenizer_config.json", "processor_config.json", "preprocessor_config.json"):
        (folder / file).write_text(json.dumps({"auto_map": WORDS}))
    save_file({"weight": torch.zeros(1)}, folder / "model.safetensors", {"format": "pt"})
    return folder


DOORS: dict[str, Callable[[str, Any], Any]] = {
    "load_model": lambda folder, target: load_model(folder),
    "load_as": lambda folder, target: load_as(type(target), folder, torch.float32),
    "load_tokenizer": lambda folder, target: load_tokenizer(folder),
    "load_processor": lambda folder, target: load_processor(folder),
    "methods --for": lambda folder, target: outline(folder),
    "a draft model": lambda folder, target: mmspec.enable(target, drafter=folder),
    "a tokenizer of a drafter": lambda folder, target: mmspec.enable(target, "suffix", tokenizer=folder, corpus="x"),
    "Pipeline": lambda folder, target: mmspec.Pipeline.from_pretrained(folder),
    "TextPipeline": lambda folder, target: TextPipeline.from_pretrained(folder),
    "its tokenizer": lambda folder, target: TextPipeline.from_pretrained(folder, model=target),
    "Janus": lambda folder, target: JanusPipeline.from_pretrained(folder),
}


def messages(error: BaseException | None) -> Iterator[str]:
    """All that a traceback shows."""
    while error is not None:
        yield str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@pytest.mark.parametrize("door", DOORS)
def test_a_yes_on_the_terminal_runs_nothing(door: str, evil: Path, sprung: Path, target: Any) -> None:
    with pytest.raises(ValueError) as error:
        DOORS[door](str(evil), target)
    assert not sprung.exists()
    assert not [said for said in messages(error.value) if "trust_remote_code" in said]
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("load", [load_model, load_tokenizer, load_processor, outline])
def test_it_says_that_code_is_not_run(load: Callable, evil: Path) -> None:
    with pytest.raises(
        ValueError, match=r"needs code of its own \(auto_map in its configuration\), which mmspec never"
    ):
        load(str(evil))


def test_the_saved_pipeline_of_an_evil_tokenizer(evil: Path, sprung: Path, target: Any, tmp_path: Path) -> None:
    folder = tmp_path / "pipe"
    target.save_pretrained(folder / "model")
    shutil.move(evil, folder / "tokenizer")
    index = {"_class_name": "TextPipeline", "model": ["transformers", "LlamaForCausalLM"]}
    (folder / "model_index.json").write_text(json.dumps({**index, "tokenizer": ["transformers", "TokenizersBackend"]}))
    with pytest.raises(ValueError, match="needs code of its own"):
        mmspec.Pipeline.from_pretrained(folder)
    assert not sprung.exists()


def test_a_model_that_transformers_knows_too_is_loaded_without_its_code(
    target: Any, evil: Path, sprung: Path, tmp_path: Path, prompts: Callable
) -> None:
    target.save_pretrained(tmp_path / "known")
    shutil.copy(evil / "evil.py", tmp_path / "known")
    config = json.loads((tmp_path / "known" / "config.json").read_text())
    (tmp_path / "known" / "config.json").write_text(json.dumps({**config, "auto_map": CODE}))
    model = load_model(str(tmp_path / "known"))
    with torch.no_grad():
        assert torch.equal(model(**prompts(1)).logits, target(**prompts(1)).logits)
    assert outline(str(tmp_path / "known")).parameters == sum(p.numel() for p in target.parameters())
    assert not sprung.exists()


def said_in(tree: ast.AST) -> list[str]:
    """Calls that may run what a file holds, and do not say that they must not."""
    found = []
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        said = {word.arg: word.value.value for word in call.keywords if isinstance(word.value, ast.Constant)}
        name = ast.unparse(call.func)
        auto = re.fullmatch(r"(.*\.)?Auto[A-Z]\w*\.(from_pretrained|from_config)", name)
        if auto and said.get("trust_remote_code") is not False:
            found.append(f"{name}: line {call.lineno}")
        if name == "torch.load" and said.get("weights_only") is not True:
            found.append(f"{name}: line {call.lineno}")
    return found


def test_every_call_in_the_sources_says_that_no_code_is_run() -> None:
    files = [file for folder in SOURCES for file in sorted(folder.rglob("*.py"))]
    assert len(files) > 200
    wrong = {file.name: said for file in files if (said := said_in(ast.parse(file.read_text("utf-8"))))}
    assert not wrong


@pytest.mark.parametrize(
    "line",
    [
        "AutoConfig.from_pretrained(name)",
        "transformers.AutoModelForCausalLM.from_config(config)",
        "AutoTokenizer.from_pretrained(name, trust_remote_code=True)",
        "AutoProcessor.from_pretrained(name, trust_remote_code=asked)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
    ],
)
def test_such_a_call_would_be_found(line: str) -> None:
    assert said_in(ast.parse(line))
