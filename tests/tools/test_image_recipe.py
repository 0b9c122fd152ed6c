"""Recipe `image`: a few steps of everything, resumed, loaded again; what is read and what is learned."""

import json

import pytest
import torch

import mmspec
from mmspec_image.pipeline import TextToImagePipeline
from tools.train.pictures import codes as recipes
from tools.train.pictures.codes import ImageRecipe, facts_of, next_code, train
from tools.train.pictures.data import Pictures
from tools.train.pictures.ship import ship


@pytest.fixture(scope="module")
def small():
    """22 pictures of 16 × 16 pixels, of which two are held out."""
    images = torch.randint(256, (22, 3, 16, 16), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    captions = [f"{colour} {thing}" for colour in ("red", "blue") for thing in "abcdefghijk"]
    sizes = dict(codes=16, vq_steps=2, vq_batch=4, steps=2, refining=2, batch=4, length=4)
    return Pictures(images, captions), ImageRecipe(**sizes)


def test_a_few_steps_of_everything(small, tmp_path):
    pictures, recipe = small
    said = []
    vq, model, tokenizer = train(pictures, recipe, tmp_path, "cpu", said.append)
    assert [line.split("  ")[0] for line in said] == ["vq: step 2/2", *["transformer: step 2/2"] * 2]
    again = train(pictures, recipe, tmp_path, "cpu", said.append)
    for ours, theirs in zip(model.parameters(), again[1].parameters(), strict=True):
        assert torch.equal(ours, theirs)
    facts = facts_of(vq, model, tokenizer, pictures, recipe)
    assert facts["parameters"] == sum(p.numel() for part in (vq, model) for p in part.parameters())
    assert 1 < facts["held_out_nats_per_code"]["with its caption"] < 4
    ship(TextToImagePipeline(model.transformer, vq, model.encoder, tokenizer), facts, tmp_path / "made")
    assert json.loads((tmp_path / "made" / "training.json").read_text())["recipe"]["refining"] == recipe.refining
    pipe = mmspec.Pipeline.from_pretrained(str(tmp_path / "made"), k=3)
    pipe.set_progress_bar_config(disable=True)
    made = pipe("red a", seed=0)
    assert made.images[0].size == (16, 16) and made.report.method == "gs-sjd"


def test_wrong_codes_are_read_and_true_ones_learned(small, tmp_path, monkeypatch):
    pictures, recipe = small
    batches = {}

    def fit(model, batch_at, loss_of, options, folder, say):
        batches[folder.name] = [batch_at(step) for step in range(20)]

    monkeypatch.setattr(recipes, "fit", fit)
    train(pictures, recipe, tmp_path, "cpu", print)
    assert list(batches) == ["vq", "transformer", "refined"]
    assert all(torch.equal(read, true) for *_, read, _, true in batches["transformer"])
    shares = torch.cat([(read != true).float().mean(1) for *_, read, _, true in batches["refined"]])
    assert shares.min() == 0 and 0.05 < shares.mean() < recipe.replaced / 2 and shares.max() > recipe.replaced / 2


def test_the_loss_is_of_the_true_codes():
    logits = torch.full((1, 3, 4), -20.0).scatter(2, torch.tensor([[[2], [0], [3]]]), 20.0)
    loss = next_code(lambda read: logits, (torch.tensor([[1, 1, 1]]), torch.tensor([[2, 0, 3]])))
    assert float(loss) < 1e-6
