"""Small KL autoencoders for pictures (diffusers' `AutoencoderKL`), and their latents as tokens.

Tokens are latents in raster order, standardised channel by channel (`latents_mean` and `latents_std` of the
configuration). The decoder is trained on latents with added noise, so that the noise `sigma_0` of a denoising head's
last step does not show in pictures.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL
from torch import Tensor


def small_kl(dim: int, side: int, channels: Sequence[int], groups: int = 8) -> AutoencoderKL:
    """An untrained autoencoder without attention.

    Args:
        dim: Channels of a latent: numbers per token.
        side: Height and width of the pictures, in pixels.
        channels: Channels of the levels, from the picture inwards; every level but the last halves the size.
        groups: Groups of the norms; must divide all channels.
    """
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * len(channels),
        up_block_types=("UpDecoderBlock2D",) * len(channels),
        block_out_channels=tuple(channels),
        layers_per_block=1,
        latent_channels=dim,
        norm_num_groups=groups,
        sample_size=side,
        scaling_factor=1.0,
        mid_block_add_attention=False,
    )


def autoencoding_loss(
    vae: AutoencoderKL, images: Tensor, generator: torch.Generator, kl: float, most_noise: float
) -> Tensor:
    """Mean absolute and squared error of pixels, plus the mean divergence of the latents from N(0, I).

    Args:
        vae: The autoencoder.
        images: `[batch, 3, side, side]` in [-1, 1].
        generator: Generator of the noise, on the CPU.
        kl: Weight of the divergence.
        most_noise: Largest noise that is added to a picture's latents, in standard deviations of their channel.
    """
    distribution = vae.encode(images).latent_dist
    shape = distribution.mean.shape
    latents = distribution.mean + distribution.std * torch.randn(shape, generator=generator).to(images)
    spread = latents.detach().float().std((0, 2, 3), keepdim=True)
    level = most_noise * torch.rand(len(images), 1, 1, 1, generator=generator).to(images)
    noisy = latents + level * spread * torch.randn(shape, generator=generator).to(images)
    decoded = vae.decode(noisy).sample.float()
    divergence = (
        distribution.mean.float().square() + distribution.var.float() - 1 - distribution.logvar.float()
    ).mean() / 2
    return F.l1_loss(decoded, images) + F.mse_loss(decoded, images) + kl * divergence


def measure(vae: AutoencoderKL, latents: Tensor) -> None:
    """Write mean and standard deviation of every channel of `latents [n, cell, dim]` into the configuration.

    Raises:
        ValueError: The latents are not finite, or a channel is constant.
    """
    flat = latents.double().flatten(0, -2)
    mean, std = (tuple(round(float(x), 6) for x in values) for values in (flat.mean(0), flat.std(0)))
    for channel, (centre, spread) in enumerate(zip(mean, std, strict=True)):
        if not (math.isfinite(centre) and math.isfinite(spread) and spread > 0):
            raise ValueError(
                f"channel {channel} of these latents has mean {centre:g} and standard deviation {spread:g}: no scale "
                "makes tokens of it; were the autoencoder's weights, or the pictures, not finite?"
            )
    vae.register_to_config(latents_mean=mean, latents_std=std)


def mark(vae: AutoencoderKL) -> tuple[float, ...] | None:
    """The scales of this autoencoder's latents, which tell it from any other training; None: not measured."""
    std = vae.config.latents_std
    return None if std is None else tuple(std)


def latents_of(vae: AutoencoderKL, images: Tensor) -> Tensor:
    """Latents `[batch, cell, dim]` float32, not scaled: the means of the posterior."""
    return vae.encode(images.to(vae.dtype)).latent_dist.mean.float().flatten(2).transpose(1, 2)


def tokens_of(vae: AutoencoderKL, images: Tensor) -> Tensor:
    """Tokens `[batch, cell, dim]` of pictures `[batch, 3, side, side]` in [-1, 1]."""
    return scaled(vae, latents_of(vae, images))


def scaled(vae: AutoencoderKL, latents: Tensor) -> Tensor:
    """Tokens of latents `[…, dim]`."""
    mean, std = _scales(vae, latents)
    return (latents - mean) / std


def pictures_of(vae: AutoencoderKL, tokens: Tensor) -> Tensor:
    """Pictures `[batch, 3, side, side]` in [-1, 1] of tokens `[batch, cell, dim]`."""
    mean, std = _scales(vae, tokens)
    grid = round(tokens.shape[1] ** 0.5)
    latents = (tokens * std + mean).transpose(1, 2).unflatten(2, (grid, grid))
    return vae.decode(latents.to(vae.dtype)).sample.float().clamp(-1, 1)


def _scales(vae: AutoencoderKL, like: Tensor) -> tuple[Tensor, Tensor]:
    scales = vae.config.latents_mean, vae.config.latents_std
    if None in scales:
        raise ValueError("this autoencoder's latents were not measured: it has no latents_mean and latents_std")
    mean, std = (torch.tensor(values, dtype=like.dtype, device=like.device) for values in scales)
    return mean, std
