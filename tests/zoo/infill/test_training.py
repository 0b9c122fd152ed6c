"""`mmspec train infill`: blanks are learnt in the pass that verifies them; it loads, fills, resumes; bad input."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from safetensors.torch import load_file
from torch import Tensor
from transformers import XLNetConfig, XLNetLMHeadModel
from typer.testing import CliRunner

import mmspec
from mmspec.cli.app import build
from mmspec.files import SEAL
from mmspec.training import loop
from mmspec_zoo.infill import training
from mmspec_zoo.infill.command import train_infill
from mmspec_zoo.infill.pipeline import InfillPipeline
from mmspec_zoo.infill.training import blanked, infill_loss, share_at
from mmspec_zoo.infill.xlnet import MASK, logits_of
from tests.support.examples.zoo import tiny_xlnet
from tests.zoo.infill.test_pipeline import tokenizer
from tests.zoo.infill.test_xlnet import conditional


def test_every_blank_is_learnt_as_the_target_scores_it() -> None:
    """The loss of a text is that of the conditionals along its order, one blank after another."""
    model, ids = tiny_xlnet(), torch.randint(6, (2, 9), generator=torch.Generator().manual_seed(2))
    view = blanked(ids, 6, torch.Generator().manual_seed(1))
    assert view.asked.shape == (2, 6) and not torch.equal(*view.asked)
    with torch.no_grad():
        scores = logits_of(model, view).log_softmax(-1)
        found = float(infill_loss(model, view))
    total = 0.0
    for row in range(2):
        blanks = view.asked[row].tolist()
        assert blanks == sorted(blanks), "from left to right"
        text = [None if place in blanks else int(ids[row, place]) for place in range(9)]
        tokens = [int(ids[row, place]) for place in blanks]
        for query, token in enumerate(tokens):
            alone = conditional(model, text, blanks, tokens[:query])
            here = scores[row, query].exp().index_fill(0, torch.tensor([MASK]), 0.0)  # which the reference leaves out
            assert torch.allclose(alone.float(), here / here.sum(), atol=1e-4)
            total -= float(scores[row, query, token])
    assert found == pytest.approx(total / 12, rel=1e-4)


def test_the_share_of_blanks_rises_between_its_bounds() -> None:
    g = torch.Generator().manual_seed(0)
    early, half, late = ([share_at(step, 100, g) for _ in range(200)] for step in (0, 50, 400))
    assert early == pytest.approx([0.15] * 200)
    assert 0.5 <= min(half) < 0.51 and 0.56 < max(half) <= 0.57
    assert 0.85 <= min(late) < 0.86 and 0.98 < max(late) <= 0.99


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small XLNet over seven words, and texts in which they follow one another."""
    torch.manual_seed(0)
    sizes = dict(vocab_size=8, d_model=16, n_layer=1, n_head=2, d_inner=24, dropout=0.1)
    XLNetLMHeadModel(XLNetConfig(**sizes)).save_pretrained(tmp_path / "xlnet")
    tokenizer().save_pretrained(tmp_path / "xlnet")
    lines = [json.dumps({"text": " ".join("abcdefg"[(at + n) % 7] for n in range(20))}) for at in range(40)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    return tmp_path


def trained(folder: Path, name: str = "out", **numbers: Any) -> Path:
    how: dict[str, Any] = {"steps": 3, "batch": 2, "context": 10, "rising": 2, "learning_rate": 1e-2, **numbers}
    train_infill(str(folder / "xlnet"), folder / name, [folder / "texts.jsonl"], work=folder / f"{name}-work", **how)
    return folder / name


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def test_a_model_is_written_whole_fills_and_a_stopped_run_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = training.LoopOptions
    monkeypatch.setattr(training, "LoopOptions", lambda *a, **how: options(*a, **how, save_every=1, log_every=1))
    monkeypatch.setattr("typer.echo", str)
    out = trained(folder)
    facts = json.loads((out / "training.json").read_text())
    assert set(facts["held_out"]) == {"nats a blank", "before"} and facts["recipe"]["context"] == 10
    assert (out / SEAL).is_file()
    pipe = mmspec.Pipeline.from_pretrained(str(out), k=2)
    assert isinstance(pipe, InfillPipeline) and "<mask>" not in pipe("a <mask> c", seed=1).texts[0]
    monkeypatch.setattr("typer.echo", stop)
    with pytest.raises(typer.Exit):
        trained(folder, "broken")
    assert loop.load_tensors(folder / "broken-work" / "model" / loop.CHECKPOINT)["step"] == 2
    assert not (folder / "broken").exists()
    monkeypatch.setattr("typer.echo", str)
    one, other = weights(out), weights(trained(folder, "broken"))
    assert all(torch.equal(value, other[key]) for key, value in one.items()), "dropout included"
    anew = weights(trained(folder, "anew", anew=True, seed=1, steps=1, learning_rate=1e-7))
    before = weights(folder / "xlnet")
    key = "transformer.layer.0.ff.layer_1.weight"
    assert not torch.allclose(anew[key], before[key], atol=1e-3)


def stop(line: str) -> None:
    if "step 2/3" in str(line):
        raise KeyboardInterrupt


@pytest.mark.slow
def test_it_learns_what_follows(folder: Path) -> None:
    out = trained(folder, steps=400, batch=8, rising=50, anew=True)
    counted = json.loads((out / "training.json").read_text())["held_out"]
    assert counted["before"] > 1.5 and counted["nats a blank"] < 0.7


def test_texts_are_filled_by_a_command(folder: Path) -> None:
    line = ["generate", "infill", "a <mask> <mask> d", "--model", str(folder / "xlnet"), "--opt", "draft=bigram"]
    run = CliRunner().invoke(build(), line)
    assert run.exit_code == 0 and len(run.stdout.split("\n")[0].split()) == 4 and "<mask>" not in run.stdout
    assert "assd" in run.stderr


def test_what_cannot_be_learnt_from_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"the 5% held out have to make a sequence of 100 \(context\)"):
        trained(folder, context=100)
    (folder / "texts.jsonl").write_text('{"ids": [1]}')
    with pytest.raises(ValueError, match=r'line 1 of .*texts.jsonl is not {"text": "…"}'):
        trained(folder)
    tokenizer(mask="c").save_pretrained(folder / "xlnet")
    with pytest.raises(ValueError, match="mask token has the id 2, and that of XLNet is 6"):
        trained(folder)
    with pytest.raises(ValueError, match="fills no blanks"):
        run = CliRunner().invoke(build(), ["generate", "infill", "a", "--model", "mmspec/text-1m", "--method", "plain"])
        raise run.exception or AssertionError
    assert not (folder / "out").exists()
