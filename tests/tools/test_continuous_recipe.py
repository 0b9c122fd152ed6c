"""Recipe `continuous`: what is shipped fits its budget; a few steps of everything, resumed, loaded again."""

import json

import pytest
import torch

import mmspec
from mmspec_continuous.pipeline import ContinuousTextToImagePipeline, mark
from tools.bench.pictures.quality import Features
from tools.train.pictures import tokens as recipes
from tools.train.pictures.data import Pictures
from tools.train.pictures.ship import ship
from tools.train.pictures.tokens import ContinuousRecipe, facts_of, token_loss, train, untrained_kl, untrained_model

LARGEST = 14e6
"""Bytes of what is shipped."""
BESIDE = 250e3
"""Of these, for configurations, the tokenizer and the statistics of pictures."""


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def test_the_shipped_models_fit_their_budget():
    recipe = ContinuousRecipe()
    vae, model = untrained_kl(recipe, 64), untrained_model(recipe, 8, recipe.words, None)
    assert 4.5e6 < parameters(model.transformer) < 5.5e6
    assert 2 * (parameters(vae) + parameters(model) + parameters(Features(recipe.words))) + BESIDE < LARGEST
    with torch.no_grad():
        assert vae.encode(torch.zeros(1, 3, 64, 64)).latent_dist.mean.shape == (1, recipe.token_dim, 8, 8)


@pytest.fixture(scope="module")
def small():
    """22 pictures of 8 × 8 pixels, of which one is held out."""
    images = torch.randint(256, (22, 3, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    captions = [f"{colour} {thing}" for colour in ("red", "blue") for thing in "abcdefghijk"]
    recipe = ContinuousRecipe(channels=(8, 8), kl_steps=2, kl_batch=4, steps=2, batch=2, length=4)
    return Pictures(images, captions), recipe


def test_a_few_steps_of_everything(small, tmp_path):
    pictures, recipe = small
    said = []
    vae, model, tokenizer = train(pictures, recipe, tmp_path, "cpu", said.append)
    assert [line.split(":")[0] for line in said] == ["kl", "transformer"]
    assert tuple(model.transformer.config.latents) == mark(vae) and len(mark(vae)) == 8
    again = train(pictures, recipe, tmp_path, "cpu", said.append)
    for ours, theirs in zip(model.parameters(), again[1].parameters(), strict=True):
        assert torch.equal(ours, theirs)
    facts = facts_of(vae, model, tokenizer, pictures, recipe)
    assert facts["parameters"] == parameters(vae) + parameters(model)
    assert 0.1 < facts["held_out_loss"]["with its caption"] < 5
    ship(ContinuousTextToImagePipeline(model.transformer, vae, model.encoder, tokenizer), facts, tmp_path / "made")
    assert json.loads((tmp_path / "made" / "training.json").read_text())["recipe"]["sigma_0"] == recipe.sigma_0
    pipe = mmspec.Pipeline.from_pretrained(str(tmp_path / "made"), k=3)
    pipe.set_progress_bar_config(disable=True)
    made = pipe("red a", seed=0)
    assert made.images[0].size == (8, 8) and made.tokens.isfinite().all() and made.report.method == "reflection"


def test_wrong_tokens_are_read_and_true_ones_learned(small, tmp_path, monkeypatch):
    pictures, recipe = small
    batches = {}

    def fit(model, batch_at, loss_of, options, folder, say):
        batches[folder.name] = [batch_at(step) for step in range(20)]

    monkeypatch.setattr(recipes, "fit", fit)
    train(pictures, recipe, tmp_path, "cpu", print)
    shares = torch.cat([(read != true).any(2).float().mean(1) for _, _, read, _, true, _ in batches["transformer"]])
    assert shares.min() < 0.1 and 0.35 < shares.mean() < 0.65 and shares.max() > 0.9


def test_captions_and_noise_reach_the_loss(small):
    _, recipe = small
    model = untrained_model(recipe, 4, 30, None)
    ids, mask = torch.arange(2, 10).view(2, 4), torch.ones(2, 4, dtype=torch.bool)
    tokens, others = torch.randn(2, 2, 16, 8, generator=torch.Generator().manual_seed(0))

    def loss(ids=ids, dropped=(False, False), seed=0, noise=recipe.input_noise, read=tokens, true=tokens):
        model.input_noise = noise
        g = torch.Generator().manual_seed(seed)
        return token_loss(model, (ids, mask, read, torch.tensor(dropped), true, g))

    first = loss()
    assert torch.equal(loss(), first)
    changed = (loss(ids + 9), loss(dropped=(True, False)), loss(seed=1), loss(noise=0.5), loss(read=others))
    for other in (*changed, loss(true=others)):
        assert not torch.equal(other, first)
    first.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert torch.equal(loss(ids + 9, (True, True)), loss(dropped=(True, True)))
