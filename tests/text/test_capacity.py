"""`mmspec plan`: the formulas by hand, a published size by its data sheet, and the sentence below the table."""

import json
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, LlamaConfig, MixtralConfig
from typer.testing import CliRunner

from mmspec.cli.app import build
from mmspec.shipped import folder
from mmspec_text.plan.work import GPUS, SIZES, Drafting, Machine, Work, forecast, work_of

SMALL = Work(shared=8.0, routed=0.0, chosen=1.0, operations=4.0, slot=1.0)
"""A pass reads 8 bytes and one a unit of context and row; a node takes 4 operations."""
SLOW = Machine(bandwidth=4.0, arithmetic=8.0)
"""4 bytes and 8 operations a second."""


def test_the_best_chain_by_hand() -> None:
    """A plain pass reads 12 bytes in 3 s, and 6 nodes are computed meanwhile; the seventh costs half a second."""
    drafting = Drafting([0.5**depth for depth in range(1, 9)])
    found = forecast(SMALL, SLOW, rows=1, context=4, drafting=drafting)
    assert (found.pass_seconds, found.memory, found.plain) == (3.0, 12.0, 1 / 3)
    assert (found.drafts, found.v, found.speedup) == (5, 1.0, 1.96875)  # 1 + 1/2 + 1/4 + 1/8 + 1/16 + 1/32
    assert found.fast == pytest.approx(1.96875 / 3)


def test_what_drafts_cost_and_rows_take() -> None:
    """A draft takes 0.15 passes: two are best, (1 + 1/2 + 1/4) / 1.3. 64 rows compute for longer than they read."""
    drafting = Drafting([0.5**depth for depth in range(1, 9)], cost=0.15)
    one = forecast(SMALL, SLOW, rows=1, context=4, drafting=drafting)
    assert one.drafts == 2 and one.speedup == pytest.approx(1.75 / 1.3)
    many = forecast(SMALL, SLOW, rows=64, context=0, drafting=drafting)
    assert (many.pass_seconds, many.drafts, many.speedup) == (32.0, 0, 1.0)


def test_a_published_size() -> None:
    """Llama 3.1 of 8 B parameters: 15.0 GB are read in a pass, which an H200 does in 3.13 ms; no weight is made."""
    work = work_of("llama-8b")
    assert work.shared == pytest.approx(15.0e9, rel=0.01)
    found = forecast(work, GPUS["h200"].machine(), 1, 4096, Drafting([0.8] * 4))
    assert 1e3 * found.pass_seconds == pytest.approx(3.24, rel=0.01)
    assert work.memory(1, 4096) == 4096 * 2 * 32 * 8 * 128 * torch.bfloat16.itemsize


def test_a_model_of_ones_own(tmp_path: Path) -> None:
    """Only its config is read: the same numbers as those of the size that has these settings."""
    config = LlamaConfig(**{key: value for key, value in SIZES["llama-1b"].items() if key != "config"})
    config.save_pretrained(tmp_path)
    assert work_of(str(tmp_path)) == work_of("llama-1b")
    found = json.loads(said(str(tmp_path), "--rows", "1", "--json"))
    assert found == json.loads(said("llama-1b", "--rows", "1", "--json"))
    GPT2Config(n_embd=64, n_layer=3, n_head=4, vocab_size=100).save_pretrained(tmp_path)
    assert work_of(str(tmp_path)).slot == 2 * 3 * 64 * torch.bfloat16.itemsize
    small = dict(
        hidden_size=64, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
    )
    MixtralConfig(**small, vocab_size=100, num_local_experts=8, num_experts_per_tok=2).save_pretrained(tmp_path)
    experts = work_of(str(tmp_path))
    assert experts.chosen == 0.25 and experts.routed == 2 * 8 * 3 * 64 * 32 * torch.bfloat16.itemsize
    assert work_of("mmspec/text-14m").shared == pytest.approx(28e6, rel=0.1)


def said(*arguments: str) -> str:
    result = CliRunner().invoke(build(), ["plan", *arguments], catch_exceptions=False, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command() -> None:
    output = said("llama-8b", "--gpu", "h100", "--rows", "64,1,4096", "--context", "2048")
    lines = [line.split() for line in output.splitlines()]
    assert [line[0] for line in lines[2:5]] == ["1", "64", "4096"] and "(too much)" in output
    found = json.loads(said("llama-8b", "--rows", "1,1024", "--context", "1", "--json"))
    assert found[0]["speedup"] > 2 and found[1]["speedup"] == 1 and found[1]["drafts"] == 0
    assert "stops paying (below 1.05 times plain) at 1024 rows" in said(
        "llama-8b", "--rows", "1,1024", "--context", "1"
    )


def test_measured_acceptance() -> None:
    """The file of a benchmark has the share of rounds that reach every depth."""
    path = folder("model_cards") / "text-14m.bench.json"
    row = next(row for row in json.loads(path.read_text())["rows"] if row["method"] == "suffix")
    given = ["llama-8b", "--rows", "1", "--result", str(path), "--method", "suffix", "--json"]
    (found,) = json.loads(said(*given, "--setting", row["setting"]))
    assert found["speedup"] == pytest.approx(1 + sum(row["acceptance_by_depth"][: found["drafts"]]), rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["llama-9b"], "no size is called.*llama-8b"),
        (["mmspec/text-14n"], "text-14n"),
        (["llama-8b", "--gpu", "h1000"], "GPU.*h100"),
        (["llama-8b", "--rows", "1,none"], "not 'none'"),
        (["llama-8b", "--rows", "0"], "not '0'"),
        (["llama-8b", "--method", "suffix"], "--result"),
        (["llama-8b", "--result", "FILE", "--acceptance", "0.5"], "not both"),
        (["llama-8b", "--result", "FILE", "--method", "sufix"], "suffix"),
    ],
)
def test_bad_input(arguments: list[str], message: str) -> None:
    path = str(folder("model_cards") / "text-14m.bench.json")
    given = [path if argument == "FILE" else argument for argument in arguments]
    with pytest.raises(ValueError, match=message):
        CliRunner().invoke(build(), ["plan", *given], catch_exceptions=False, standalone_mode=False)
