"""What was trained, as a folder that the pipeline's `from_pretrained` reads, with its facts beside the weights."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from mmspec.kits.pictures.data import HELD_OUT, Pictures, pixels
from mmspec.kits.pictures.features import train_features
from mmspec.kits.pictures.quality import write_quality
from mmspec.kits.pictures.ship import ship
from mmspec.training.work import claimed, digest
from mmspec_continuous.models.kl import pictures_of, tokens_of
from mmspec_continuous.pipeline import ContinuousTextToImagePipeline
from mmspec_continuous.train.recipe import Captioned, ContinuousRecipe, token_loss, train

BATCH = 64
NAME = "emoji-continuous"


@torch.no_grad()
def facts_of(
    vae: AutoencoderKL,
    model: Captioned,
    tokenizer: PreTrainedTokenizerFast,
    pictures: Pictures,
    recipe: ContinuousRecipe,
) -> dict[str, Any]:
    """What the card says: parameters, recipe, and how held-out pictures fare.

    `held_out_loss` is the head's, after the picture's caption and after the null caption, with the same noise;
    `reconstruction_psnr_db` is that of the autoencoder, on pixels in [-1, 1], of its tokens as they are and with noise
    of `sigma_0` on them.
    """
    vae.eval(), model.eval()
    device = next(model.parameters()).device
    kept = pictures.held_out.nonzero()[:, 0]
    images = pixels(pictures.images[kept].to(device))
    words = tokenizer([pictures.captions[i] for i in kept], padding="max_length", truncation=True, return_tensors="pt")
    tokens = torch.cat([tokens_of(vae, part) for part in images.split(BATCH)])
    noise = torch.randn(tokens.shape, generator=torch.Generator().manual_seed(0)).to(device)
    held = (words["input_ids"].to(device), words["attention_mask"].bool().to(device), tokens)
    return {
        "parameters": sum(p.numel() for part in (vae, model) for p in part.parameters()),
        "held_out_loss": {
            "with its caption": _loss(model, *held, dropped=False),
            "without a caption": _loss(model, *held, dropped=True),
        },
        "reconstruction_psnr_db": {
            "of its tokens": _psnr(vae, tokens, images),
            "with noise of sigma_0 on them": _psnr(vae, tokens + recipe.sigma_0 * noise, images),
        },
        "held_out": f"every {HELD_OUT}th picture",
        "recipe": asdict(recipe),
    }


def _loss(model: Captioned, ids: Tensor, mask: Tensor, tokens: Tensor, dropped: bool) -> float:
    total, generator = 0.0, torch.Generator().manual_seed(0)
    for some in zip(*(t.split(BATCH) for t in (ids, mask, tokens)), strict=True):
        without = torch.full((len(some[0]),), dropped, device=tokens.device)
        total += float(token_loss(model, (*some, without, some[-1], generator))) * len(some[0])
    return round(total / len(tokens), 4)


def _psnr(vae: AutoencoderKL, tokens: Tensor, images: Tensor) -> float:
    made = torch.cat([pictures_of(vae, part) for part in tokens.split(BATCH)])
    return round(float(10 * (4 / (made - images).square().mean()).log10()), 2)


def train_and_ship(
    pictures: Pictures, recipe: ContinuousRecipe, out: Path, work: Path, device: str, say: Callable[[str], None]
) -> None:
    """Train autoencoder, transformer and the features that judge them, and write `<out>/emoji-continuous`.

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
        vae, model, tokenizer = train(pictures, recipe, work, device, say)
        features = train_features(pictures, tokenizer, work, device, lambda line: say(f"features: {line}"))
        facts = facts_of(vae, model, tokenizer, pictures, recipe)
        seen = pixels(pictures.images[~pictures.held_out])
        pipe = ContinuousTextToImagePipeline(model.transformer.half(), vae.half(), model.encoder.half(), tokenizer)
        ship(pipe, facts, out / NAME, also=lambda folder: write_quality(folder, features, seen))
        say(f"{NAME}: {facts['parameters']:,} parameters, held-out loss {facts['held_out_loss']}")
