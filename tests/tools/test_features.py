"""The features that judge pictures are trained: against chance, and resumed."""

from pathlib import Path

import torch

from tools.bench.pictures.quality import Features, write_quality
from tools.train.pictures.captioned import caption_tokenizer
from tools.train.pictures.data import Pictures, pixels
from tools.train.pictures.features import FeatureRecipe, alike, train_features


@torch.no_grad()
def recognised(model: Features, pictures: Pictures, tokenizer, among: int = 10) -> float:
    """Share of held-out pictures whose own caption is one of the `among` likeliest held-out ones."""
    kept = pictures.held_out.nonzero()[:, 0]
    captions = [pictures.captions[i] for i in kept.tolist()]
    words = tokenizer(captions, padding="max_length", truncation=True, return_tensors="pt").to(model.device)
    images = pixels(pictures.images[kept]).to(model.device)
    likeliest = alike(model, images, words["input_ids"], words["attention_mask"]).topk(min(among, len(kept))).indices
    # Equal captions may differ in the last bit of their cosines, so texts are compared, not places.
    known = [own in {captions[i] for i in row} for own, row in zip(captions, likeliest.tolist(), strict=True)]
    return sum(known) / len(known)


def test_training_tells_pictures_by_their_captions_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    names = ["red", "green", "blue", "cyan", "pink", "black"]
    colours = [[255, 0, 0], [0, 255, 0], [0, 0, 255], [0, 255, 255], [255, 120, 180], [0, 0, 0]]
    images = torch.tensor(colours, dtype=torch.uint8)[torch.arange(120) % 6, :, None, None].expand(-1, -1, 16, 16)
    pictures = Pictures(images.contiguous(), [names[i % 6] for i in range(120)])
    tokenizer = caption_tokenizer(names, 60, 4)
    lines: list[str] = []
    features = train_features(pictures, tokenizer, tmp_path, say=lines.append, recipe=FeatureRecipe(steps=90, batch=12))
    assert recognised(features, pictures, tokenizer, among=1) == 1
    quality = write_quality(tmp_path, features, pixels(pictures.images))
    words = tokenizer(pictures.captions, padding="max_length", return_tensors="pt")
    ids, mask, shown = words["input_ids"], words["attention_mask"], pixels(pictures.images)
    assert quality.caption_score(shown, ids, mask) > 0.5 > quality.caption_score(shown, ids.roll(1, 0), mask.roll(1, 0))
    again = train_features(pictures, tokenizer, tmp_path, say=lines.append, recipe=FeatureRecipe(steps=90, batch=12))
    assert lines[-1] == "resuming at step 90 of 90" and recognised(again, pictures, tokenizer, among=1) == 1
