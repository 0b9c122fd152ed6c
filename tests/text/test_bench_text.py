"""`mmspec bench text` on a user's own prompts and draft model."""

import json
import re
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from typer.testing import CliRunner

from mmspec.bench import methods as choices
from mmspec.bench.generate import GenerateCall
from mmspec.bench.methods import counted_or_read
from mmspec.bench.race import race, tune
from mmspec.cli.app import build
from mmspec.kits.text.bench import contestants, run
from mmspec.report.trust import load_result


def test_ones_own_prompts_and_draft_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft model is the target, so that all of its drafts are accepted."""
    theirs = run.peers
    monkeypatch.setattr(  # compiling takes a minute
        run, "peers", lambda *args: {name: way for name, way in theirs(*args).items() if "compiled" not in name}
    )
    own = tmp_path / "own.jsonl"
    own.write_text('{"prompt": "def area(radius):"}\n\n{"prompt": "class Stack:", "more": 1}\n')
    small = ["--prompts", str(own), "--new-tokens", "8", "--repeats", "1", "--batch", "2", "--method", "draft-model"]
    models = [
        "--model",
        "mmspec/text-1m",
        "--drafter",
        "mmspec/text-1m",
        "--dtype",
        "float64",
        "--json",
        str(tmp_path / "r.json"),
    ]
    made = CliRunner().invoke(build(), ["bench", "text", *small, *models], env={"COLUMNS": "200"})
    assert made.exit_code == 0, made.exception
    result = load_result(tmp_path / "r.json")
    assert result.how == "Weights are in float64."
    assert result.prompts == {"prompts": 2} and result.settings == ["prompts, greedy", "prompts, T = 0.8"]
    row = result.row("prompts, greedy", "draft-model")
    assert row.acceptance_length > 2 and row.quality["same_as_plain"] == 1 and row.units == 16
    assert row.options["drafter"] == "mmspec/text-1m"
    assert {row.method for row in result.rows if row.batch == 2} == {"plain"}


def test_how_many_or_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert counted_or_read("3") == (3, None)
    for lines, says in (
        ("", "own.jsonl is empty"),
        ('{"prompt": ""}', "line 1 of own.jsonl is no prompt"),
        ('{"prompt": "a"}\n{"text": "a"}', "line 2 of own.jsonl is no prompt"),
        ("[1]", r"line 1 of own.jsonl cannot be read: .*; a prompt is a line \{\"prompt\""),
        ('{"prompt": "a"}\n' * 3, "own.jsonl has more than 2 prompts"),
    ):
        Path("own.jsonl").write_text(lines)
        with monkeypatch.context() as patch, pytest.raises(ValueError, match=says):
            patch.setattr(choices, "MOST", 2)
            counted_or_read("own.jsonl")
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    lines = [{"turns": ["a", "b"], "category": "x"}, {"messages": [*chat, chat[0], chat[1]]}, {"prompt": "c"}]
    Path("own.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert counted_or_read("own.jsonl", chats=True) == (3, [chat[:1], [*chat, chat[0]], "c"])
    with pytest.raises(ValueError, match=r"line 1 of own.jsonl is no prompt: \{\"prompt\": \"…\"\}$"):
        counted_or_read("own.jsonl")
    for line in ('{"turns": []}', '{"turns": [3]}', '{"messages": []}', '{"messages": ["a"]}', '{"prompt": 3}'):
        Path("own.jsonl").write_text(line)
        with pytest.raises(ValueError, match=r"is no prompt: .*turns.*messages"):
            counted_or_read("own.jsonl", chats=True)
    Path("own.jsonl").write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(ValueError, match=r"own.jsonl cannot be read"):
        counted_or_read("own.jsonl")


class _Engine(types.ModuleType):
    """In the place of the package that runs llama.cpp: it writes as many tokens as it is asked for, or fewer."""

    def __init__(self, missing: int = 0) -> None:
        super().__init__(contestants.PACKAGE)
        self.asked: list[dict[str, Any]] = []
        self.made: list[Any] = []

        def serve(how: Any) -> Any:
            self.made.append(how)
            return SimpleNamespace(handle_completions=complete)

        def complete(asked: dict[str, Any]) -> dict[str, Any]:
            self.asked.append(asked)
            return {"__verbose": {"tokens": [7] * (asked["max_tokens"] - missing)}}

        self.CommonParams, self.Server = MagicMock, serve
        self.common_speculative_type = SimpleNamespace(COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE="n-grams")


def test_another_engine_runs_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, file = _Engine(), tmp_path / "small.gguf"
    monkeypatch.setitem(sys.modules, contestants.PACKAGE, engine)
    contestants._engine.cache_clear()
    call = GenerateCall(SimpleNamespace(device="cpu"), 5, 0.8, 3)
    ways = contestants.peers(call, None, (file,))[f"llama.cpp, {file.name}"].ways
    tuned = tune(ways, [{"input_ids": torch.tensor([[4, 5]])}])
    assert set(tuned.tried) == set(contestants.NGRAMS)
    runs = race({"it": tuned.way}, [{"input_ids": torch.tensor([[4, 5]])}], 1)["it"].every
    assert [run.emitted for run in runs] == [5] and len(engine.made) == len(contestants.NGRAMS)
    assert [how.speculative.ngram_simple.size_m for how in engine.made[1:]] == [5, 10]
    first = engine.asked[0]
    assert (first["prompt"], first["temperature"], first["seed"], first["top_p"]) == ([4, 5], 0.8, 3, 1.0)
    assert first["ignore_eos"] and not first["cache_prompt"]
    monkeypatch.setitem(sys.modules, contestants.PACKAGE, _Engine(missing=1))
    contestants._engine.cache_clear()
    track = race({"it": tuned.way}, [{"input_ids": torch.tensor([[4]])}], 1, optional=["it"])["it"]
    assert track.failure == "ValueError: llama.cpp wrote 4 of 5 tokens: no error"
    contestants._engine.cache_clear()


def test_files_of_another_engine_are_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.gguf"
    asked = ["bench", "text", "--model", "mmspec/text-1m", "--method", "suffix", "--gguf", str(file)]
    monkeypatch.setattr(run, "load_model", lambda *_: pytest.fail("loaded"))
    monkeypatch.setattr(contestants, "find_spec", lambda _: None)
    for content, says in ((None, "there is no file"), (b"GGML", "is no GGUF file"), (b"GGUF", r"mmspec\[llama-cpp\]")):
        if content is not None:
            file.write_bytes(content)
        made = CliRunner().invoke(build(), asked)
        assert made.exit_code and re.search(says, f"{made.output} {made.exception}")
