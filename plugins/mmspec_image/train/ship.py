"""What was trained, as a folder that `TextToImagePipeline.from_pretrained` reads, with its facts beside the weights."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from mmspec.kits.pictures.data import HELD_OUT, Pictures, pixels
from mmspec.kits.pictures.features import train_features
from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec.kits.pictures.quality import write_quality
from mmspec.kits.pictures.ship import ship
from mmspec.training.work import claimed, digest
from mmspec_image.pipeline import TextToImagePipeline
from mmspec_image.train.recipe import Captioned, ImageRecipe, next_code, train

BATCH = 64


@torch.no_grad()
def facts_of(
    vq: LlamaGenVQ, model: Captioned, tokenizer: PreTrainedTokenizerFast, pictures: Pictures, recipe: ImageRecipe
) -> dict[str, Any]:
    """What the card says: parameters, recipe, and how held-out pictures fare.

    `held_out_nats_per_code` is the cross-entropy after the picture's caption, and after the null caption;
    `reconstruction_psnr_db` is that of the tokenizer, on pixels in [-1, 1].
    """
    vq.eval(), model.eval()
    device = next(model.parameters()).device
    kept = pictures.held_out.nonzero()[:, 0]
    images = pixels(pictures.images[kept].to(device))
    words = tokenizer([pictures.captions[i] for i in kept], padding="max_length", truncation=True, return_tensors="pt")
    codes = torch.cat([vq.encode(part).codes.flatten(1) for part in images.split(BATCH)])
    made = torch.cat(
        [vq.decode(part.unflatten(1, 2 * (model.transformer.config.grid,))) for part in codes.split(BATCH)]
    )
    held = (words["input_ids"].to(device), words["attention_mask"].bool().to(device), codes)
    return {
        "parameters": sum(p.numel() for part in (vq, model) for p in part.parameters()),
        "held_out_nats_per_code": {
            "with its caption": _nats(model, *held, dropped=False),
            "without a caption": _nats(model, *held, dropped=True),
        },
        "reconstruction_psnr_db": round(float(10 * (4 / (made - images).square().mean()).log10()), 2),
        "codes_used": len(codes.unique()),
        "held_out": f"every {HELD_OUT}th picture",
        "recipe": asdict(recipe),
    }


def _nats(model: Captioned, ids: Tensor, mask: Tensor, codes: Tensor, dropped: bool) -> float:
    total = 0.0
    for some in zip(*(t.split(BATCH) for t in (ids, mask, codes)), strict=True):
        without = torch.full((len(some[0]),), dropped, device=codes.device)
        total += float(next_code(model, (*some, without, some[-1]))) * len(some[0])
    return round(total / len(codes), 4)


def train_and_ship(
    pictures: Pictures, recipe: ImageRecipe, out: Path, work: Path, device: str, say: Callable[[str], None]
) -> None:
    """Train tokenizer, transformer and the features that judge them, and write `<out>/emoji`.

    Args:
        pictures: Pictures and captions.
        recipe: Sizes and lengths.
        out: Folder that receives the finished model.
        work: Folder for checkpoints; delete it to start anew.
        device: Where to train.
        say: Where progress lines go.

    Raises:
        ValueError: `work` is another run's, or of another recipe; or training cannot go on.
    """
    data = digest((pictures.images, *pictures.captions))
    with claimed(work, asdict(recipe) | {"data": data}):
        vq, model, tokenizer = train(pictures, recipe, work, device, say)
        features = train_features(pictures, tokenizer, work, device, lambda line: say(f"features: {line}"))
        facts = facts_of(vq, model, tokenizer, pictures, recipe)
        seen = pixels(pictures.images[~pictures.held_out])
        pipe = TextToImagePipeline(model.transformer.half(), vq.half(), model.encoder.half(), tokenizer)
        ship(pipe, facts, out / "emoji", also=lambda folder: write_quality(folder, features, seen))
        say(f"emoji: {facts['parameters']:,} parameters, held-out nats per code {facts['held_out_nats_per_code']}")
