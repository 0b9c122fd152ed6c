"""`mmspec bench text` on a user's own prompts and draft model."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmspec.bench import methods as choices
from mmspec.bench.methods import counted_or_read
from mmspec.cli.app import build
from mmspec.kits.text.bench import run
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
    models = ["--model", "mmspec/text-1m", "--drafter", "mmspec/text-1m", "--json", str(tmp_path / "r.json")]
    made = CliRunner().invoke(build(), ["bench", "text", *small, *models], env={"COLUMNS": "200"})
    assert made.exit_code == 0, made.exception
    result = load_result(tmp_path / "r.json")
    assert result.prompts == {"prompts": 2} and result.settings == ["prompts, greedy", "prompts, T = 0.8"]
    row = result.row("prompts, greedy", "draft-model")
    assert row.acceptance_length > 2 and row.quality["same_as_plain"] == 1 and row.units == 16
    assert row.options["drafter"] == "mmspec/text-1m"
    assert {row.method for row in result.rows if row.batch == 2} == {"plain"} and not result.teacher_forced


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
