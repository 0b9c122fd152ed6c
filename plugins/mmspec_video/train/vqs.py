"""Train the two VQs: one for picture quality, one for codes that are easy to predict."""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.kits.pictures.data import pixels
from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec.training.loop import LoopOptions, fit
from mmspec_video.train.clusters import Clusters
from mmspec_video.train.codebook import Restarts
from mmspec_video.train.recipe import Say, VideoRecipe
from mmspec_video.train.world import World

RESTART = 50
"""Steps after which unused codebook entries are replaced."""
SHARP = 20.0
"""Logit of a code at cosine similarity 1."""


def train_vq(world: World, recipe: VideoRecipe, folder: Path, device: str, say: Say) -> LlamaGenVQ:
    """The VQ of the denoising model: absolute and squared error of pixels, and the codebook's loss.

    Args:
        world: The episodes.
        recipe: Sizes and lengths.
        folder: Folder for checkpoints.
        device: Device to train on.
        say: Receives progress lines.
    """
    vq = _vq(recipe.codes, recipe.seed, device)
    batch_at = _pictures(world, recipe, device)
    restarts = Restarts(vq, RESTART, recipe.vq_steps // 2, recipe.seed)

    def loss_of(model: nn.Module, batch: tuple[int, Tensor]) -> Tensor:
        step, pictures = batch
        restarts.before(step, pictures)
        reconstructed, quantised = model(pictures)
        restarts.after(quantised.codes)
        return _error(reconstructed, pictures) + quantised.loss.float()

    fit(vq, batch_at, loss_of, LoopOptions(recipe.vq_steps, 1e-3, weight_decay=0.0), folder, say)
    return vq


def train_coarse_vq(world: World, recipe: VideoRecipe, folder: Path, device: str, say: Say) -> LlamaGenVQ:
    """The VQ of the token model: its encoder learns to classify patches by cluster, its decoder to draw the clusters.

    The decoder reads the true clusters and not the encoder's predictions. Arguments are those of `train_vq`.
    """
    vq = _vq(recipe.token_codes, recipe.seed, device, local_decoder=True)
    batch_at = _pictures(world, recipe, device)
    seen = world.frames[~world.held_out][:, ::10].flatten(0, 1)
    clusters = Clusters.of(pixels(seen), recipe.token_codes, recipe.seed)

    def loss_of(model: nn.Module, batch: tuple[int, Tensor]) -> Tensor:
        _, pictures = batch
        codes = clusters.codes(pictures.cpu()).to(device)
        cells = F.normalize(model.quant_conv(model.encoder(pictures)).float(), dim=1)
        cosine = torch.einsum("bdrc,kd->bkrc", cells, model.quantize.entries)
        return _error(model.decode(codes), pictures) + F.cross_entropy(SHARP * cosine, codes)

    fit(vq, batch_at, loss_of, LoopOptions(recipe.token_vq_steps, 1e-3, weight_decay=0.0), folder, say)
    return vq


def _vq(codes: int, seed: int, device: str, local_decoder: bool = False) -> LlamaGenVQ:
    torch.manual_seed(seed)
    return LlamaGenVQ(
        codes,
        ch=32,
        encoder_ch_mult=(1, 1, 2, 4),
        decoder_ch_mult=(1, 1, 2, 2),
        z_channels=64,
        num_res_blocks=1,
        local=True,
        local_decoder=local_decoder,
    ).to(device)


def _pictures(world: World, recipe: VideoRecipe, device: str) -> Callable[[int], tuple[int, Tensor]]:
    """From a step to its number and its batch of training frames."""
    frames = world.frames[~world.held_out].flatten(0, 1)

    def batch_at(step: int) -> tuple[int, Tensor]:
        g = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
        return step, pixels(frames[torch.randint(len(frames), (recipe.vq_batch,), generator=g)]).to(device)

    return batch_at


def _error(reconstructed: Tensor, pictures: Tensor) -> Tensor:
    error = reconstructed.float() - pictures
    return error.abs().mean() + error.square().mean()
