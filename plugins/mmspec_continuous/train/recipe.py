"""`mmspec train continuous`: a KL autoencoder for the emoji, its latents, then a caption encoder and a transformer."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from diffusers import AutoencoderKL
from torch import Generator, Tensor, nn
from transformers import PreTrainedTokenizerFast

from mmspec.kits.pictures.data import SHIFTS, Pictures, caption_tokenizer, moved, pixels
from mmspec.kits.pictures.models.captions import CaptionEncoder
from mmspec.training.loop import LoopOptions, fit
from mmspec.training.work import cached
from mmspec_continuous.models.continuous_ar import CausalContinuousAR
from mmspec_continuous.models.kl import autoencoding_loss, latents_of, mark, measure, scaled, small_kl

Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Generator]
"""Caption ids and mask, tokens that are read, which captions are dropped, tokens that are true, the step's noise."""


@dataclass(frozen=True)
class ContinuousRecipe:
    """Sizes and lengths.

    Attributes:
        token_dim: Numbers of a token.
        channels: Of the autoencoder's levels, from the picture inwards.
        kl_steps: Steps of the autoencoder.
        kl_batch: Pictures of each.
        kl_weight: Weight of its latents' divergence from N(0, I).
        most_noise: Largest noise on latents that the decoder learns to see through, in standard deviations.
        denoising_steps: Of the head.
        sigma_0: Noise of its last step: larger accepts more drafts, and blurs.
        steps: Steps of the transformer.
        batch: Pictures of each.
        repeats: Denoising steps that are learned of each token of a batch.
        input_noise: Noise on the tokens that the transformer reads, so that it copes with what it drew itself.
        replaced: Largest share of the tokens that the transformer reads that are another picture's; between none and
            that, another one for every picture. A small model that has only read true tokens knows a picture by its
            first ones: it does without the caption, and is lost as soon as it has drawn a wrong one.
        moved: Share of these steps, the first ones, in which pictures are moved by a pixel or two; then they stand
            where they stand, so that the model learns their very tokens.
        words: Tokens of captions.
        length: Tokens of a caption.
        drop: Share of captions that are replaced by the null caption, for guidance.
        seed: Of weights and batches.
    """

    token_dim: int = 8
    channels: tuple[int, ...] = (16, 32, 48, 64)
    kl_steps: int = 2000
    kl_batch: int = 32
    kl_weight: float = 1e-4
    most_noise: float = 0.2
    denoising_steps: int = 16
    sigma_0: float = 0.1
    steps: int = 5000
    batch: int = 16
    repeats: int = 4
    input_noise: float = 0.1
    replaced: float = 1.0
    moved: float = 0.3
    words: int = 1024
    length: int = 16
    drop: float = 0.1
    seed: int = 0


class Captioned(nn.Module):
    """Encoder and transformer, trained together.

    Args:
        encoder: Features of captions.
        transformer: Tokens after them.
        recipe: `repeats` and `input_noise`.
    """

    def __init__(self, encoder: CaptionEncoder, transformer: CausalContinuousAR, recipe: ContinuousRecipe) -> None:
        super().__init__()
        self.encoder, self.transformer = encoder, transformer
        self.repeats, self.input_noise = recipe.repeats, recipe.input_noise

    def forward(
        self, ids: Tensor, mask: Tensor, read: Tensor, dropped: Tensor, true: Tensor, generator: Generator
    ) -> Tensor:
        """The head's loss of tokens `true [batch, n, token_dim]`, each after those that are `read` before it.

        Rows `dropped [batch]` have the null caption.
        """
        null = self.transformer.cls_embedding.null(len(ids))
        features = torch.where(dropped[:, None, None], null, self.encoder(ids, mask).type_as(null))
        noise = torch.randn(read.shape, generator=generator).to(read.device)
        told = self.transformer(features, read + self.input_noise * noise, mask | dropped[:, None])
        return self.transformer.token_head.loss(told, true, generator, self.repeats)


def made_kl(recipe: ContinuousRecipe, side: int) -> AutoencoderKL:
    """The autoencoder, untrained."""
    torch.manual_seed(recipe.seed)
    return small_kl(recipe.token_dim, side, recipe.channels)


def made_model(recipe: ContinuousRecipe, grid: int, words: int, latents: tuple[float, ...] | None) -> Captioned:
    """Encoder and transformer, untrained.

    Args:
        recipe: Sizes.
        grid: Tokens per side.
        words: Size of the caption vocabulary.
        latents: The autoencoder's mark.
    """
    torch.manual_seed(recipe.seed + 1)
    encoder = CaptionEncoder(words, recipe.length, dim=128)
    transformer = CausalContinuousAR(
        recipe.token_dim,
        grid,
        caption_dim=encoder.config.dim,
        cls_token_num=recipe.length,
        steps=recipe.denoising_steps,
        sigma_0=recipe.sigma_0,
        latents=latents,
    )
    return _scaled(Captioned(encoder, transformer, recipe))


def train_kl(
    pictures: Pictures, recipe: ContinuousRecipe, work: Path, device: str, say: Callable[[str], None]
) -> AutoencoderKL:
    """The autoencoder: error of pixels through noisy latents, and a little divergence."""
    vae = made_kl(recipe, pictures.images.shape[-1]).to(device)
    images = pictures.images[~pictures.held_out].to(device)

    def batch_at(step: int) -> tuple[Tensor, Generator]:
        g = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
        chosen = torch.randint(len(images), (recipe.kl_batch,), generator=g)
        shift = SHIFTS[int(torch.randint(len(SHIFTS), (), generator=g))]
        return pixels(moved(images[chosen.to(device)], shift)), g

    def loss_of(model: nn.Module, batch: tuple[Tensor, Generator]) -> Tensor:
        assert isinstance(model, AutoencoderKL)
        return autoencoding_loss(model, *batch, kl=recipe.kl_weight, most_noise=recipe.most_noise)

    # float32: convolutions of this size are no faster in bfloat16 on a CPU.
    options = LoopOptions(recipe.kl_steps, 1e-3, weight_decay=0.0, bf16=False)
    fit(vae, batch_at, loss_of, options, work / "kl", say)
    return vae


@torch.no_grad()
def encode_all(vae: AutoencoderKL, pictures: Pictures, work: Path, device: str) -> Tensor:
    """Tokens of every picture in every place: `[shift, picture, cell, token_dim]`, kept in `work`.

    Writes into the autoencoder's configuration what makes them of unit variance: that of the training pictures as they
    stand.
    """

    def made() -> Tensor:
        vae.eval()
        shifted = []
        for shift in SHIFTS:
            parts = moved(pictures.images, shift).split(256)
            shifted.append(torch.cat([latents_of(vae, pixels(part.to(device))).cpu() for part in parts]))
        return torch.stack(shifted).half()

    latents = cached(work / "latents.pt", (*vae.state_dict().values(), pictures.images), made)
    measure(vae, latents[0, ~pictures.held_out])
    return scaled(vae, latents.float())


def train_model(
    pictures: Pictures,
    tokens: Tensor,
    latents: tuple[float, ...] | None,
    tokenizer: PreTrainedTokenizerFast,
    recipe: ContinuousRecipe,
    work: Path,
    device: str,
    say: Callable[[str], None],
) -> Captioned:
    """Encoder and transformer: the head's loss of every token, after true ones and after some wrong ones."""
    grid = round(tokens.shape[2] ** 0.5)
    model = made_model(recipe, grid, len(tokenizer), latents).to(device)
    words = tokenizer(pictures.captions, padding="max_length", truncation=True, return_tensors="pt")
    seen = (~pictures.held_out).nonzero()[:, 0]

    def batch_at(step: int) -> Batch:
        g = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
        chosen = seen[torch.randint(len(seen), (recipe.batch,), generator=g)]
        shift = torch.randint(len(SHIFTS), (recipe.batch,), generator=g) * (step < recipe.moved * recipe.steps)
        dropped = torch.rand(recipe.batch, generator=g) < recipe.drop
        ids, mask = words["input_ids"][chosen], words["attention_mask"][chosen].bool()
        true = tokens[shift, chosen]
        other = tokens[0, seen[torch.randint(len(seen), (recipe.batch,), generator=g)]]
        wrong = torch.rand(true.shape[:2], generator=g) < recipe.replaced * torch.rand(recipe.batch, 1, generator=g)
        read = torch.where(wrong[..., None], other, true)
        return (*(t.to(device) for t in (ids, mask, read, dropped, true)), g)

    options = LoopOptions(recipe.steps, 1e-3, warmup=200, weight_decay=0.02)
    fit(model, batch_at, token_loss, options, work / "transformer", say)
    return model


def token_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The head's loss of every token."""
    loss: Tensor = model(*batch)
    return loss


def train(
    pictures: Pictures, recipe: ContinuousRecipe, work: Path, device: str, say: Callable[[str], None]
) -> tuple[AutoencoderKL, Captioned, PreTrainedTokenizerFast]:
    """Everything, resuming where it stopped."""
    work.mkdir(parents=True, exist_ok=True)
    vae = train_kl(pictures, recipe, work, device, partial(_said, say, "kl"))
    tokens = encode_all(vae, pictures, work, device)
    tokenizer = caption_tokenizer(pictures.captions, recipe.words, recipe.length)
    told = partial(_said, say, "transformer")
    return vae, train_model(pictures, tokens, mark(vae), tokenizer, recipe, work, device, told), tokenizer


def _said(say: Callable[[str], None], what: str, line: str) -> None:
    say(f"{what}: {line}")


def _scaled(model: Captioned) -> Captioned:
    """Small weights to begin with, smaller where a residual is added to; the head's stay as torch makes them."""
    for name, weights in model.transformer.named_parameters():
        if weights.dim() > 1 and not name.startswith(("token_head.", "token.")):
            depth = (2 * len(model.transformer.layers)) ** 0.5 if name.endswith(("wo.weight", "w2.weight")) else 1.0
            nn.init.normal_(weights, std=0.02 / depth)
    return model
