"""The bench of `ssm` on a tiny hybrid with the shipped tokenizer; what its rounds over trees leave behind."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BambaForCausalLM
from typer.testing import CliRunner

from mmspec.hosts.loading import load_tokenizer
from mmspec.kits.text.bench import run
from mmspec_ssm.bench import METHODS
from mmspec_ssm.target import RecurrentTarget
from tools.bench import memory
from tools.bench.__main__ import build
from tools.bench.limits import Floor
from tools.bench.text import rounds as module
from tools.bench.text import whole
from tools.bench.text.rounds import Round, rounds
from tools.report.whole import load_whole
from tools.train.text import hybrid as train
from tools.train.text.hybrid import TEACHER, SsmRecipe, initial_model

CHAIN = "stree (chain of 7)"
SMALL: dict[str, Any] = dict(
    train.SIZES, hidden_size=16, intermediate_size=16, num_hidden_layers=2, attn_layer_indices=[1]
) | dict(num_attention_heads=2, num_key_value_heads=1, mamba_n_heads=2, mamba_d_head=16, mamba_d_state=4)
STATE = 4 * (2 * 16 * 4 + (32 + 2 * 4) * 4)
"""Bytes of its one recurrent layer: heads × width × size, and the convolution's last inputs."""


@pytest.fixture(scope="module")
def hybrid() -> BambaForCausalLM:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "SIZES", SMALL)
        return initial_model(SsmRecipe(), load_tokenizer(TEACHER)).eval()


def test_it_measures_and_writes(hybrid: BambaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hybrid.save_pretrained(tmp_path / "model")
    load_tokenizer(TEACHER).save_pretrained(tmp_path / "model")
    theirs = run.peers
    monkeypatch.setattr(  # compiling takes a minute
        run, "peers", lambda *args: {name: way for name, way in theirs(*args).items() if "compiled" not in name}
    )
    monkeypatch.setattr(whole, "measure_floor", lambda read, operations, device: Floor(1e10, 1e11, read, operations))
    monkeypatch.setattr(whole, "pass_seconds", lambda target, text, nodes=(1, 2, 16): dict.fromkeys(nodes, 0.001))
    for bench in (memory, module):  # the profiler is slow; the next test reads it
        monkeypatch.setattr(bench, "peak_growth", lambda work, device: 1)
    monkeypatch.setattr(whole, "READ", 12)
    monkeypatch.setattr(module, "SIZES", (1, 8))
    monkeypatch.setattr(module, "REPEATS", 1)
    monkeypatch.setenv("COLUMNS", "200")
    small = ["--prompts", "1", "--new-tokens", "8", "--repeats", "1", "--batch", "2"]
    files = ["--model", str(tmp_path / "model"), "--json", str(tmp_path / "r.json")]
    made = CliRunner().invoke(build(), ["ssm", *small, *files, "--method", f"prompt-lookup,{CHAIN}"])
    assert made.exit_code == 0, made.exception
    result = load_whole(tmp_path / "r.json")
    assert result.kind == "ssm" and len(result.settings) == 4
    for setting in result.settings:
        for name in ("plain", "prompt-lookup", CHAIN):
            assert result.row(setting, name).quality["same_as_plain"] == 1
        assert result.peers[f"{setting} / generate"].repeats_s
        for refused in ("prompt lookup", "assistant"):
            peer = result.peers[f"{setting} / generate, {refused}"]
            assert not peer.repeats_s and "stateful" in peer.note, "transformers does not speculate over states"
        best = result.vs_best[setting]
        assert best.way in {"generate", "plain"} and set(best.times) == {"plain", "prompt-lookup", CHAIN}
    assert result.row("code, greedy", CHAIN).options["form"] == "chain"
    assert {row.method for row in result.rows if row.batch == 2} == {"plain", "prompt-lookup"}
    assert set(result.limits.by_nodes["tree / chain"]) == {str(n) for n in module.SIZES}
    assert "Rounds over N nodes" in made.output and "commit / tree" in made.output


def test_rounds_are_measured_from_one_node_on(hybrid: BambaForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIZES", (1, 4))
    monkeypatch.setattr(module, "REPEATS", 2)
    found = rounds(RecurrentTarget(hybrid), torch.arange(2, 12)[None])
    assert found["tree / one node"]["1"] == 1 and all(set(by) == {"1", "4"} for by in found.values())
    assert found["N states, MB"] == {"1": round(STATE / 1e6, 4), "4": round(4 * STATE / 1e6, 4)}
    assert 0 < found["memory of a round, MB"]["1"] < found["memory of a round, MB"]["4"]


def test_rounds_of_a_benchmark_keep_nothing(hybrid: BambaForCausalLM) -> None:
    target, prompt = RecurrentTarget(hybrid), torch.arange(2, 12)[None]
    cache = target.start(prompt, 1, 8).cache

    def held() -> list[torch.Tensor]:
        layers = cache.slots.recurrent.values()
        return [cache.slots.length, *(fold.state.clone() for layer in layers for fold in layer.operations.values())]

    before = held()
    for parents in ((), (-1, -1, 0, 2), (-1, 0, 1)):
        Round(target, cache, prompt[:, -1], parents).whole()
    assert len(before) == 3 and all(torch.equal(a, b) for a, b in zip(before, held(), strict=True))


def test_tree_and_chain_are_compared_at_the_same_size() -> None:
    tree, chain = (METHODS[f"stree ({shape} of 7)"] for shape in ("tree", "chain"))
    assert {**tree, "form": "chain"} == chain and METHODS["stree"].get("nodes") is None


def test_a_file_without_a_folder_is_refused(tmp_path: Path) -> None:
    made = CliRunner().invoke(build(), ["ssm", "--json", str(tmp_path / "none" / "r.json")])
    assert isinstance(made.exception, ValueError) and "there is no folder" in str(made.exception)
