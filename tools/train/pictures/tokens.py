"""Recipe `continuous`: a KL autoencoder for the emoji, its latents, then a caption encoder and a transformer."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL
from torch import Generator, Tensor, nn
from transformers import PreTrainedTokenizerFast

from mmspec.kits.pictures.models.captions import CaptionEncoder
from mmspec.training.loop import LoopOptions, fit
from mmspec.training.work import cached
from mmspec_continuous.models.continuous_ar import CausalContinuousAR
from mmspec_continuous.pipeline import ContinuousTextToImagePipeline, mark, pictures_of
from tools.train.pictures import captioned as kit
from tools.train.pictures import ship
from tools.train.pictures.captioned import caption_tokenizer
from tools.train.pictures.data import Pictures
from tools.train.pictures.latents import autoencoding_loss, head_loss, latents_of, measure, scaled, small_kl, tokens_of

Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Generator]
"""Caption ids and mask, tokens that are read, which captions are dropped, tokens that are true, the step's noise."""


@dataclass(frozen=True)
class ContinuousRecipe:
    """Sizes and lengths."""

    token_dim: int = 8  # numbers of a token
    channels: tuple[int, ...] = (16, 32, 48, 64)  # of the autoencoder's levels, from the picture inwards
    kl_steps: int = 2000  # steps of the autoencoder
    kl_batch: int = 32  # pictures per step of the autoencoder
    kl_weight: float = 1e-4  # weight of its latents' divergence from N(0, I)
    most_noise: float = 0.2  # largest noise on latents that the decoder learns to see through, in standard deviations
    denoising_steps: int = 16  # of the head
    sigma_0: float = 0.1  # noise of its last step: larger accepts more drafts, and blurs
    steps: int = 5000  # steps of the transformer
    batch: int = 16  # pictures per step of the transformer
    repeats: int = 4  # denoising steps that are learned of each token of a batch
    # Noise on the tokens that the transformer reads, so that it copes with what it drew itself
    input_noise: float = 0.1
    # Largest share of the tokens that the transformer reads that are another picture's; every picture has its own share
    # between 0 and this. A small model that has read true tokens only recognises a picture by its first tokens: it
    # ignores the caption, and fails after its first wrong token.
    replaced: float = 1.0
    # Share of these steps, the first ones, in which pictures are moved by a pixel or two; afterwards they are not
    # moved, so that the model learns their own tokens
    moved: float = 0.3
    words: int = 1024  # size of the captions' vocabulary
    length: int = 16  # tokens of a caption, padding included
    drop: float = 0.1  # share of captions that are replaced by the null caption, for guidance
    seed: int = 0  # seed of weights and batches


class Captioned(nn.Module):
    """Encoder and transformer, trained together."""

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
        features, seen = kit.caption_features(self.encoder, self.transformer, ids, mask, dropped)
        noise = torch.randn(read.shape, generator=generator).to(read.device)
        condition = self.transformer(features, read + self.input_noise * noise, seen)
        return head_loss(self.transformer.token_head, condition, true, generator, self.repeats)


def untrained_kl(recipe: ContinuousRecipe, side: int) -> AutoencoderKL:
    """The autoencoder, untrained."""
    torch.manual_seed(recipe.seed)
    return small_kl(recipe.token_dim, side, recipe.channels)


def untrained_model(recipe: ContinuousRecipe, grid: int, words: int, latents: tuple[float, ...] | None) -> Captioned:
    """Encoder and transformer, untrained.

    Args:
        recipe: Sizes.
        grid: Tokens per side.
        words: Size of the caption vocabulary.
        latents: What tells the autoencoder from others (`mmspec_continuous.pipeline.mark`).
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
    kit.start_small(transformer, left_out=("token_head.", "token."))
    return Captioned(encoder, transformer, recipe)


def train_kl(
    pictures: Pictures, recipe: ContinuousRecipe, work: Path, device: str, say: Callable[[str], None]
) -> AutoencoderKL:
    """Train the autoencoder: error of pixels through noisy latents, and a small divergence term."""
    vae = untrained_kl(recipe, pictures.images.shape[-1]).to(device)
    images = pictures.images[~pictures.held_out].to(device)

    def batch_at(step: int) -> tuple[Tensor, Generator]:
        g = kit.generator_of(recipe.seed, step)
        return kit.moved_batch(images, recipe.kl_batch, g), g

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

    Writes into the autoencoder's configuration the scales that give tokens unit variance, measured on the training
    pictures that are not moved.
    """

    def encoded() -> Tensor:
        vae.eval()
        return kit.encoded_everywhere(pictures, lambda images: latents_of(vae, images), device).half()

    latents = cached(work / "latents.pt", (*vae.state_dict().values(), pictures.images), encoded)
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
    """Train encoder and transformer: the head's loss of every token, after true tokens and some wrong ones."""
    grid = round(tokens.shape[2] ** 0.5)
    model = untrained_model(recipe, grid, len(tokenizer), latents).to(device)
    units = kit.CaptionedUnits(pictures, tokens, tokenizer, recipe.batch, recipe.drop)

    def batch_at(step: int) -> Batch:
        g = kit.generator_of(recipe.seed, step)
        ids, mask, true, dropped = units.draw(g, step < recipe.moved * recipe.steps)
        other = units.others(g)
        read = torch.where(kit.wrong_units(true, recipe.replaced, g)[..., None], other, true)
        return ids.to(device), mask.to(device), read.to(device), dropped.to(device), true.to(device), g

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
    """Train all parts, resuming where training stopped."""
    work.mkdir(parents=True, exist_ok=True)
    vae = train_kl(pictures, recipe, work, device, lambda line: say(f"kl: {line}"))
    tokens = encode_all(vae, pictures, work, device)
    tokenizer = caption_tokenizer(pictures.captions, recipe.words, recipe.length)
    say_more: Callable[[str], None] = lambda line: say(f"transformer: {line}")  # noqa: E731
    return vae, train_model(pictures, tokens, mark(vae), tokenizer, recipe, work, device, say_more), tokenizer


@torch.no_grad()
def facts_of(
    vae: AutoencoderKL,
    model: Captioned,
    tokenizer: PreTrainedTokenizerFast,
    pictures: Pictures,
    recipe: ContinuousRecipe,
) -> dict[str, Any]:
    """What the card says: parameters, recipe, and numbers of held-out pictures.

    `held_out_loss` is the head's, after the picture's caption and after the null caption, with the same noise;
    `reconstruction_psnr_db` is the autoencoder's, of its tokens as they are and with noise of `sigma_0` on them.
    """
    vae.eval(), model.eval()
    images, ids, mask = kit.held_out(pictures, tokenizer, next(model.parameters()).device)
    tokens = torch.cat([tokens_of(vae, part) for (part,) in kit.batched(images)])
    noise = torch.randn(tokens.shape, generator=torch.Generator().manual_seed(0)).to(tokens.device)

    def loss(dropped: bool) -> float:
        generator = torch.Generator().manual_seed(0)

        def of(ids: Tensor, mask: Tensor, tokens: Tensor) -> Tensor:
            without = torch.full((len(ids),), dropped, device=ids.device)
            return token_loss(model, (ids, mask, tokens, without, tokens, generator))

        return kit.mean_loss(of, ids, mask, tokens)

    def quality(tokens: Tensor) -> float:
        return kit.psnr(torch.cat([pictures_of(vae, part) for (part,) in kit.batched(tokens)]), images)

    return ship.facts(
        recipe,
        vae,
        model,
        held_out_loss={"with its caption": loss(dropped=False), "without a caption": loss(dropped=True)},
        reconstruction_psnr_db={
            "of its tokens": quality(tokens),
            "with noise of sigma_0 on them": quality(tokens + recipe.sigma_0 * noise),
        },
    )


def train_and_ship(
    pictures: Pictures, recipe: ContinuousRecipe, out: Path, work: Path, device: str, say: Callable[[str], None]
) -> None:
    """As `tools.train.pictures.ship.train_and_ship`; writes `<out>/emoji-continuous`."""
    parts: dict[str, Any] = {"train": train, "facts_of": facts_of, "pipeline": ContinuousTextToImagePipeline}
    ship.train_and_ship("emoji-continuous", pictures, recipe, out, work, device, say, **parts)
