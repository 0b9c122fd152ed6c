"""Training of the feature network of `tools.bench.pictures.quality`: CLIP's loss on pictures and captions."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from mmspec.training.loop import LoopOptions, fit
from tools.bench.pictures.quality import Features
from tools.train.pictures.captioned import SHIFTS, moved
from tools.train.pictures.data import Pictures, pixels

TEMPERATURE = 0.07


@dataclass(frozen=True)
class FeatureRecipe:
    """Lengths of the recipe."""

    steps: int = 800  # optimiser steps
    batch: int = 64  # pictures per step; every picture is compared with all captions of its batch
    seed: int = 0  # seed of weights and batches


def train_features(
    pictures: Pictures,
    tokenizer: PreTrainedTokenizerFast,
    work: Path,
    device: str = "cpu",
    say: Callable[[str], None] = print,
    recipe: FeatureRecipe = FeatureRecipe(),
) -> Features:
    """Train, resuming where it stopped; `tools.bench.pictures.quality.write_quality` ships it.

    Args:
        pictures: Pictures and captions; held-out ones are not used.
        tokenizer: The captions' tokenizer (`tools.train.pictures.captioned.caption_tokenizer`).
        work: Folder for the checkpoint.
        device: Where to train.
        say: Receives lines of progress.
        recipe: Lengths.
    """
    torch.manual_seed(recipe.seed)
    model = Features(len(tokenizer)).to(device)
    words = tokenizer(pictures.captions, padding="max_length", truncation=True, return_tensors="pt")
    seen = (~pictures.held_out).nonzero()[:, 0]

    def batch_at(step: int) -> tuple[Tensor, ...]:
        g = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
        chosen = seen[torch.randperm(len(seen), generator=g)[: recipe.batch]]
        shift = SHIFTS[int(torch.randint(len(SHIFTS), (), generator=g))]
        images = pixels(moved(pictures.images[chosen], shift))
        return tuple(t.to(device) for t in (images, words["input_ids"][chosen], words["attention_mask"][chosen]))

    # float32: convolutions of this size are no faster in bfloat16 on a CPU.
    options = LoopOptions(recipe.steps, 2e-3, weight_decay=0.05, bf16=False)
    fit(model, batch_at, contrast, options, work / "features", say)
    return model


def contrast(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Symmetric InfoNCE of pictures `[batch, 3, side, side]` and their captions `[batch, length]`."""
    images, ids, mask = batch
    logits = alike(model, images, ids, mask) / TEMPERATURE
    own = torch.arange(len(images), device=logits.device)
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2


def alike(model: Any, images: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    """Cosines of features: `[picture, caption]`."""
    pictures, captions = model(images), model.captions(ids, mask)
    return F.normalize(pictures.float(), dim=-1) @ F.normalize(captions.float(), dim=-1).T
