"""Small KL autoencoders for pictures (diffusers' `AutoencoderKL`), their latents as tokens, and the losses of both.

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

from mmspec_continuous.models.continuous_ar import MixtureHead
from mmspec_continuous.models.denoiser import Denoiser
from mmspec_continuous.pipeline import scales_of


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


def latents_of(vae: AutoencoderKL, images: Tensor) -> Tensor:
    """Latents `[batch, cell, dim]` float32, not scaled: the means of the posterior."""
    return vae.encode(images.to(vae.dtype)).latent_dist.mean.float().flatten(2).transpose(1, 2)


def tokens_of(vae: AutoencoderKL, images: Tensor) -> Tensor:
    """Tokens `[batch, cell, dim]` of pictures `[batch, 3, side, side]` in [-1, 1]."""
    return scaled(vae, latents_of(vae, images))


def scaled(vae: AutoencoderKL, latents: Tensor) -> Tensor:
    """Tokens of latents `[…, dim]`."""
    mean, std = scales_of(vae, latents)
    return (latents - mean) / std


def head_loss(
    head: Denoiser | MixtureHead, condition: Tensor, tokens: Tensor, generator: torch.Generator, repeats: int
) -> Tensor:
    """The loss of a head on tokens `[batch, cell, dim]`, given the condition of each (`project`).

    Of a denoising head it is the mean squared error of v at `repeats` random steps per token: the transformer, which
    costs more, runs once for all of them. Of a mixture it is the negative log-likelihood in nats per number.
    """
    if isinstance(head, MixtureHead):
        weights, means, scales = head.parts(condition)
        z = (tokens[..., None, :] - means) / scales
        parts = weights - (z.square() / 2 + scales.log()).sum(-1)
        return math.log(2 * math.pi) / 2 - parts.logsumexp(-1).mean() / head.dim
    shape = (repeats, *tokens.shape[:-1])
    step = torch.randint(len(head.sigmas), shape, generator=generator)
    noise = torch.randn(*shape, head.dim, generator=generator).to(tokens.device)
    alpha_bar = head.alpha_bar[step][..., None].to(tokens.device)
    x = alpha_bar.sqrt() * tokens + (1 - alpha_bar).sqrt() * noise
    v = alpha_bar.sqrt() * noise - (1 - alpha_bar).sqrt() * tokens
    return F.mse_loss(head(x, step.to(tokens.device), condition.expand(repeats, *condition.shape)), v)
