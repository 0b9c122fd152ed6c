"""Recipe `mar`: small MARs over the tokens of the shipped `emoji-continuous`, for a few classes; none ships.

Trained as the authors train theirs (arXiv 2406.11838): of a picture a share of at least 70 % of the tokens is masked, a
tenth of the classes is dropped, and a masked token's loss is that of a denoising step with learned variances (Nichol &
Dhariwal, 2102.09672). Classes are words of captions: a picture has that of the first word that its caption has.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Generator, Tensor, nn

import mmspec
from mmspec.training.loop import LoopOptions, fit
from mmspec.training.work import cached
from mmspec_continuous.models.mar import MAR, TRAINED, denoising
from tools.train.pictures import captioned as kit
from tools.train.pictures.data import Pictures, pixels
from tools.train.pictures.latents import tokens_of

MODEL = "mmspec/emoji-continuous"
CLASSES = ("face", "flag", "clock", "moon", "heart", "hand", "finger", "man", "woman", "sign", "button", "train")
"""Words of captions; a picture whose caption has none of them has the class behind the last one."""
Batch = tuple[Tensor, Tensor, Tensor, int, int, Generator]
"""Classes, -1 where they are dropped, tokens, orders of places, how many of these are masked, how many denoising steps
are learned of each, and the step's noise.
"""
STEPS = denoising(TRAINED)


@dataclass(frozen=True)
class MARRecipe:
    """Sizes and lengths."""

    dim: int = 128  # width of the transformer
    depth: int = 2  # blocks of the encoder, and of the decoder
    num_heads: int = 4
    buffer_size: int = 8  # places in front that hold the class
    head_width: int = 128
    head_depth: int = 2
    steps: int = 600  # optimiser steps
    batch: int = 16  # pictures per step
    repeats: int = 4  # denoising steps that are learned of each masked token
    learning_rate: float = 2e-3
    levels: int = 980  # noise levels that are denoised: of the last ones a small model knows too little
    least_masked: float = 0.7  # the smallest share of masked tokens
    drop: float = 0.1  # share of classes that are dropped, for guidance
    seed: int = 0  # seed of weights and batches


def untrained(recipe: MARRecipe, token_dim: int, grid: int) -> MAR:
    """The model with small first weights; its head begins as the identity."""
    torch.manual_seed(recipe.seed)
    model = MAR(
        token_dim,
        grid,
        dim=recipe.dim,
        depth=recipe.depth,
        num_heads=recipe.num_heads,
        hidden=4 * recipe.dim,
        buffer_size=recipe.buffer_size,
        num_classes=len(CLASSES) + 1,
        head_width=recipe.head_width,
        head_depth=recipe.head_depth,
        levels=recipe.levels,
    )
    for name, weights in model.named_parameters():
        if name.endswith(("adaLN_modulation.1.weight", "adaLN_modulation.1.bias", "final_layer.linear.weight")):
            nn.init.zeros_(weights)
        elif "embed" in name or name in ("mask_token", "fake_latent", "class_emb.weight"):
            nn.init.normal_(weights, std=0.02)
    return model


def classes_of(captions: list[str]) -> Tensor:
    """The class of every caption, `[n]` int64."""
    said = [caption.lower().split() for caption in captions]
    return torch.tensor([next((n for n, word in enumerate(CLASSES) if word in each), len(CLASSES)) for each in said])


@torch.no_grad()
def tokens_and_classes(pictures: Pictures) -> tuple[Tensor, Tensor]:
    """Tokens `[picture, cell, token_dim]` by the shipped autoencoder, and classes `[picture]`."""
    vae = mmspec.Pipeline.from_pretrained(MODEL, method="plain").vae
    tokens = [tokens_of(vae, pixels(images)) for (images,) in kit.batched(pictures.images)]
    return torch.cat(tokens), classes_of(pictures.captions)


def mar_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The loss of masked tokens, in so many parts of the noise levels as `repeats` says, one of each part."""
    assert isinstance(model, MAR)
    labels, tokens, orders, masked, repeats, g = batch
    classes = torch.where((labels < 0)[:, None], model.fake_latent, model.class_emb(labels.clamp(min=0)))
    wanted, known = orders[:, :masked], orders[:, masked:]
    true, read = (tokens.gather(1, each[..., None].expand(-1, -1, tokens.shape[-1])) for each in (wanted, known))
    condition, losses = model(read, known, wanted, classes), list[Tensor]()
    for number in range(repeats):
        step = int((number + float(torch.rand((), generator=g))) * TRAINED / repeats)
        losses.append(step_loss(model, step, true, torch.randn(true.shape, generator=g), condition))
    return torch.stack(losses).mean()


def step_loss(model: MAR, step: int, clean: Tensor, noise: Tensor, condition: Tensor) -> Tensor:
    """Squared error of the noise that the head sees in a step, and the divergence, in bits, of the step's Gaussian from
    the true one, in which only the variance is learned. The step without noise has the variance of the one before it.
    """
    x = (clean + STEPS.of_noise[step] * noise) / STEPS.of_x[step]
    found, spread = model.diffloss.net(x, step, condition).float().chunk(2, -1)
    share, least = (spread + 1) / 2, STEPS.least[step]
    log_variance = share * STEPS.most[step] + (1 - share) * least
    apart = STEPS.keep_clean[step] * STEPS.of_noise[step] * (found.detach() - noise)
    divergence = log_variance - least + (math.exp(least) + apart.square()) / log_variance.exp() - 1
    return (found - noise).square().mean() + divergence.mean() / (2 * math.log(2))


def train_mar(pictures: Pictures, recipe: MARRecipe, work: Path, say: Callable[[str], None] = print) -> MAR:
    """Train on pictures that are not held out, resuming where training stopped."""
    work.mkdir(parents=True, exist_ok=True)
    tokens, classes = cached(work / "tokens.pt", (pictures.images,), lambda: tokens_and_classes(pictures))
    cells = tokens.shape[1]
    model, seen = untrained(recipe, tokens.shape[-1], round(cells**0.5)), (~pictures.held_out).nonzero()[:, 0]

    def batch_at(step: int) -> Batch:
        g = kit.generator_of(recipe.seed, step)
        chosen = seen[torch.randint(len(seen), (recipe.batch,), generator=g)]
        labels = classes[chosen].where(torch.rand(recipe.batch, generator=g) >= recipe.drop, -1)
        orders = torch.rand(recipe.batch, cells, generator=g).argsort(1)
        return labels, tokens[chosen], orders, math.ceil(cells * masked_share(recipe, g)), recipe.repeats, g

    options = LoopOptions(recipe.steps, recipe.learning_rate, weight_decay=0.02, bf16=False)
    fit(model, batch_at, mar_loss, options, work / "transformer", say)
    return model


def masked_share(recipe: MARRecipe, g: Generator) -> float:
    """A share of masked tokens: normal around 1 with a deviation of 0.25, between the least one and 1."""
    least = math.erf((1 - recipe.least_masked) / (0.25 * 2**0.5))
    away = torch.erfinv(torch.rand((), generator=g) * least)
    return 1 - 0.25 * 2**0.5 * float(away)
