"""Train the autoencoders: a VQ, whose codes the token model predicts, and a KL autoencoder for the denoising model.

Entries of the codebook that are not used start again (Dhariwal et al., arXiv 2005.00341, § 3.1): frames of a simulator
are similar, and without restarts most entries are never the nearest to any latent.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL
from torch import Tensor

from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec.training.loop import LoopOptions, fit
from tools.train.pictures.data import pixels
from tools.train.video.recipe import Say, VideoRecipe
from tools.train.video.world import World


class Restarts:
    """Replace entries that no latent of some batches was nearest to by latents of the next batch.

    Args:
        vq: The VQ whose codebook is watched.
        every: Batches to watch before entries are replaced; a resumed run watches as many first.
        until: The last step at which entries are replaced.
        seed: Seed of the choice of latents.
    """

    def __init__(self, vq: LlamaGenVQ, every: int, until: int, seed: int) -> None:
        self.vq, self.every, self.until = vq, every, until
        self._generator = torch.Generator().manual_seed(seed)
        self._watched = 0
        self._used = torch.zeros(len(vq.quantize.entries), dtype=torch.bool)

    @torch.no_grad()
    def before(self, step: int, pictures: Tensor) -> None:
        """Replace unused entries, if enough batches were watched; `pictures` are those of the step."""
        if step > self.until or self._watched < self.every:
            return
        cells = self.vq.quant_conv(self.vq.encoder(pictures)).float().permute(0, 2, 3, 1).flatten(0, 2)
        idle = (~self._used).nonzero()[:, 0].to(cells.device)
        chosen = torch.randint(len(cells), (len(idle),), generator=self._generator).to(cells.device)
        self.vq.quantize.embedding.weight[idle] = F.normalize(cells[chosen], dim=-1)
        self._used.zero_()
        self._watched = 0

    def after(self, codes: Tensor) -> None:
        """Record the codes of a batch as used."""
        self._used[codes.unique().cpu()] = True
        self._watched += 1


DIVERGENCE = 1e-3
"""Weight of the divergence from a normal law, a number of a latent."""
MEASURED = 16
"""Batches by which latents are shifted and scaled."""
RESTART = 50
"""Steps after which unused codebook entries are replaced."""


def train_vq(world: World, recipe: VideoRecipe, folder: Path, device: str, say: Say) -> LlamaGenVQ:
    """Train by the absolute and squared error of pixels, and the codebook's loss."""
    torch.manual_seed(recipe.seed)
    vq = LlamaGenVQ(
        recipe.codes, ch=32, encoder_ch_mult=(1, 1, 2, 4), decoder_ch_mult=(1, 1, 2, 2), z_channels=64,
        num_res_blocks=1, local=True,
    ).to(device)  # fmt: skip
    batch_at = _pictures(world, recipe.vq_batch, recipe.seed, device)
    restarts = Restarts(vq, RESTART, recipe.vq_steps // 2, recipe.seed)

    def loss_of(model: Any, batch: tuple[int, Tensor]) -> Tensor:
        step, pictures = batch
        restarts.before(step, pictures)
        reconstructed, quantised = model(pictures)
        restarts.after(quantised.codes)
        return _error(reconstructed, pictures) + quantised.loss.float()

    fit(vq, batch_at, loss_of, LoopOptions(recipe.vq_steps, 1.5e-3, weight_decay=0.0), folder, say)
    return vq


def train_autoencoder(world: World, recipe: VideoRecipe, folder: Path, device: str, say: Say) -> AutoencoderKL:
    """Train by the same error, and a little of the divergence from a normal law, which keeps latents robust to noise.

    The finished autoencoder's config shifts and scales latents to mean 0 and variance 1, those of the noise. Arguments
    are those of `train_vq`.
    """
    torch.manual_seed(recipe.seed)
    channels = (32, 32, 64, 64)
    model = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * len(channels),
        up_block_types=("UpDecoderBlock2D",) * len(channels),
        block_out_channels=channels,
        latent_channels=recipe.channels,
        sample_size=recipe.width,
        mid_block_add_attention=False,
    ).to(device)
    batch_at = _pictures(world, recipe.vae_batch, recipe.seed, device)

    def loss_of(model: Any, batch: tuple[int, Tensor]) -> Tensor:
        step, pictures = batch
        law = model.encode(pictures).latent_dist
        noise = torch.randn(law.mean.shape, generator=torch.Generator().manual_seed(recipe.batch_seed(0, step)))
        reconstructed = model.decode(law.mean + law.std * noise.to(device)).sample
        return _error(reconstructed, pictures) + DIVERGENCE * law.kl().mean() / law.mean[0].numel()

    fit(model, batch_at, loss_of, LoopOptions(recipe.vae_steps, 2e-3, weight_decay=0.0), folder, say)
    with torch.no_grad():
        means = torch.cat([model.encode(batch_at(step)[1]).latent_dist.mean for step in range(MEASURED)])
    model.register_to_config(shift_factor=float(means.mean()), scaling_factor=float(1 / means.std()))
    return model


def _pictures(world: World, batch: int, seed: int, device: str) -> Callable[[int], tuple[int, Tensor]]:
    """From a step to its number and its batch of training frames."""
    frames = world.frames[~world.held_out].flatten(0, 1)

    def batch_at(step: int) -> tuple[int, Tensor]:
        g = torch.Generator().manual_seed(seed * 1_000_003 + step)
        return step, pixels(frames[torch.randint(len(frames), (batch,), generator=g)]).to(device)

    return batch_at


def _error(reconstructed: Tensor, pictures: Tensor) -> Tensor:
    error = reconstructed.float() - pictures
    return error.abs().mean() + error.square().mean()
