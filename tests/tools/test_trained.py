"""`python -m tools.bench trained`: its figures, its document, its tables; nothing is trained here."""

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from mmspec.hosts.loading import load_model, load_tokenizer
from tools.bench.__main__ import build
from tools.bench.trained import measure
from tools.bench.trained.cut import cut_short
from tools.bench.trained.measure import TABLES, Lab, alphas, lenience, slug
from tools.cards.trained import TrainedRow, load, view, views
from tools.report import lines
from tools.train.text import judge


def row(table: str, name: str, command: str = "", **figures: float) -> TrainedRow:
    return TrainedRow(table, name, command, figures, "some CPU", {"mmspec": "0"})


def test_figures_by_hand() -> None:
    held: dict[str, Any] = {"code": {"accepted": 0.5}, "prose": {"accepted": [0.1, 0.2]}}
    assert alphas(held) == {"α, code": 0.5, "α of exit 1, prose": 0.1, "α of exit 2, prose": 0.2}
    assert slug("JSD, β = 0.1") == slug("jsd, β = 0.1") and "/" not in slug("a/b")


def test_a_document_and_its_tables(tmp_path: Path) -> None:
    """A figure that a row lacks is an empty cell; commands have a column where there are some."""
    rows = [row("one", "a", x=1.5), row("one", "b", "--kind model", x=1.0, y=0.25), row("two", "c", z=3.0)]
    lines.save_lines(tmp_path / "rows.jsonl", rows)
    assert load(tmp_path / "rows.jsonl") == rows
    first, second = views(rows)
    assert first.header == ("drafter", "x", "y", "mmspec train drafter")
    assert first.rows == [("a", "1.5", "", ""), ("b", "1", "0.25", "--kind model")] and not first.note
    assert second == view("two", rows[2:]) or second.header == ("drafter", "z")
    assert "some CPU; mmspec 0." in second.note
    (tmp_path / "rows.jsonl").write_text('{"table": "one", "name": "a", "command": "", "figures": {}}\n')
    with pytest.raises(ValueError, match="a row has figures"):
        load(tmp_path / "rows.jsonl")


def test_lenience_orders_lengths_and_bias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "PROMPTS", 2)
    monkeypatch.setattr(measure, "NEW", 24)
    monkeypatch.setattr(measure, "LENIENT", (1.0, 0.2))
    strict, loose = lenience(Lab([], tmp_path, 1))
    assert strict.figures["bias"] == 0 < loose.figures["bias"]
    assert strict.figures["length, T = 1"] < loose.figures["length, T = 1"]


def test_questions_of_the_judge_by_hand() -> None:
    """Ten lines each; the last statement that begins, with the spaces before it, is the answer."""
    text = "".join(f"    x{n} = {n}\n" for n in range(30))
    first, second = judge.questions([text])
    assert first == "".join(text.splitlines(keepends=True)[:10]) and second.splitlines()[-1] == "    x19 = 19"
    assert list(judge.questions(["a = 1\n" * 9])) == []
    assert judge.answer("):\n    return 1\n\n        if x:\n  y = 2") == "        if"
    assert judge.answer("x returns\n y = 2") is None


def test_a_draft_model_with_fewer_tokens(tmp_path: Path) -> None:
    """Its texts are the same letters, in more tokens; its first tokens mean what they meant."""
    cut_short(load_model("mmspec/text-1m"), tokenizer := load_tokenizer("mmspec/text-1m"), 600, tmp_path)
    short, text = load_tokenizer(str(tmp_path)), "def main(arguments):\n    return"
    ids, fewer = (each(text)["input_ids"] for each in (short, tokenizer))
    assert max(ids) < 600 and len(ids) > len(fewer) and short.decode(ids) == tokenizer.decode(fewer)
    whole, cut = (load_model(name).get_input_embeddings().weight for name in ("mmspec/text-1m", str(tmp_path)))
    assert torch.equal(whole[:600], cut)


def test_tables_that_there_are_not(tmp_path: Path) -> None:
    (tmp_path / "prose.txt").write_text("Once")
    refused = CliRunner().invoke(build(), ["trained", "--prose", str(tmp_path / "prose.txt"), "--table", "losess"])
    assert refused.exit_code and "losses" in str(refused.exception) and set(TABLES) >= {"losses", "sorted"}
