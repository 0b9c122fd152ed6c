"""Recipe `ssm`: what is shipped fits its budget; a few steps, interrupted, resumed, shipped, loaded again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import softplus
from transformers import AutoModelForCausalLM, AutoTokenizer

from mmspec import shipped
from mmspec.hosts.loading import load_tokenizer
from mmspec.registry import installed
from mmspec.training import loop
from mmspec.training.loop import LoopOptions
from tools.train.text import corpus
from tools.train.text import hybrid as module
from tools.train.text.hybrid import NAME, TEACHER, SsmRecipe, initial_model

LARGEST = 12e6
"""Bytes of what is shipped."""
RECIPE = SsmRecipe(context=16, batch=2, steps=4)
TEXT = corpus.Corpus(
    code=["def first(x):\n    return x + 1\n" * 20],
    prose=["To be or not to be, that is the question.\n" * 20],
    held_out_code=["def zebra(zebra):\n    return zebra\n" * 9],
    held_out_prose=["Who would hold a zebra out?\n" * 9],
)
SMALL: dict[str, Any] = dict(
    module.SIZES, hidden_size=16, intermediate_size=16, num_hidden_layers=2, attn_layer_indices=[1]
) | dict(num_attention_heads=2, num_key_value_heads=1, mamba_n_heads=2, mamba_d_head=16, mamba_d_state=4)


def test_the_shipped_model_fits_its_budget() -> None:
    model = initial_model(SsmRecipe(), load_tokenizer(TEACHER))
    parameters = sum(p.numel() for p in model.parameters())
    assert 4.5e6 < parameters - model.get_input_embeddings().weight.numel() < 5.5e6
    tokenizer = (shipped.asset("text-14m") / "tokenizer.json").stat().st_size
    assert 2 * parameters + tokenizer + 20e3 < LARGEST
    kinds = [layer.block_type for layer in model.model.layers]
    assert 1 <= kinds.count("full_attention") <= 2 < kinds.count("linear_attention")


def test_heads_begin_with_memories_of_many_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIZES", SMALL)
    mixer = initial_model(RECIPE, load_tokenizer(TEACHER)).model.layers[0].mamba
    steps = softplus(mixer.dt_bias)
    torch.testing.assert_close(steps, torch.tensor([1e-3, 0.1]))
    decay = (-mixer.A_log.exp() * steps).exp()
    assert decay[0] > 0.998 and decay[-1] < 0.9
    assert mixer.conv1d.weight.abs().max() > 0.1, "the size of torch's convolutions, not of its linear layers"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """`run(name, say)`: the whole recipe with a tiny model, a checkpoint and a line after every step; returns `out`."""
    monkeypatch.setattr(module, "SIZES", SMALL)
    monkeypatch.setattr(corpus, "load", lambda files: TEXT)
    monkeypatch.setattr(
        module, "LoopOptions", lambda steps, rate: LoopOptions(steps, rate, warmup=1, save_every=1, log_every=1)
    )

    def once(name: str, say: Callable[[str], None] = lambda line: None) -> Path:
        module.train(tmp_path / name, tmp_path / name / "work", [], RECIPE, "cpu", say)
        return tmp_path / name

    return once


def test_an_interrupted_run_ships_what_a_whole_one_does(run: Callable[..., Path], tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        if line.startswith("step 3/4"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("broken", interrupt)
    assert not (tmp_path / "broken" / NAME).exists()
    lines: list[str] = []
    broken, whole = run("broken", lines.append), run("whole")
    assert "resuming at step 3 of 4" in lines and not list(tmp_path.rglob("*.part*"))
    models = [AutoModelForCausalLM.from_pretrained(out / NAME) for out in (broken, whole)]
    trained = torch.load(whole / "work" / "model" / loop.CHECKPOINT, weights_only=True)["model"]
    for (name, ours), theirs in zip(models[0].state_dict().items(), models[1].state_dict().values(), strict=True):
        assert ours.dtype == torch.float16 and torch.equal(ours, theirs) and torch.equal(ours, trained[name].half())
    tokenizer = AutoTokenizer.from_pretrained(whole / NAME)
    assert len(tokenizer) == models[0].config.vocab_size and tokenizer.padding_side == "left"
    facts = json.loads((whole / NAME / "training.json").read_text())
    assert facts["parameters"] == sum(p.numel() for p in models[0].parameters())
    assert set(facts["held_out_nats_per_token"]) == {"code", "prose"} and facts["recipe"]["steps"] == 4
    target = installed().target_for(models[0])
    assert target is not None and target.name == "recurrent"


def test_the_teacher_is_asked_unless_the_loss_is_hard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIZES", SMALL)
    model = initial_model(RECIPE, load_tokenizer(TEACHER))
    ids = torch.arange(2, 34).view(2, 16)
    soft = module.loss_of(RECIPE, "cpu")(model, ids)
    monkeypatch.setattr(module, "load_model", None)  # calling it would fail
    hard = module.loss_of(SsmRecipe(hard=1.0), "cpu")(model, ids)
    assert soft.isfinite() and hard.isfinite() and (soft - hard).detach().abs() > 1e-3
    soft.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
