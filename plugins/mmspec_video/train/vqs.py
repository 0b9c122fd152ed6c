"""The two VQs: one for pictures that look well, one for codes that are easy to predict."""

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
"""Steps after which entries of the codebook that nothing used are put elsewhere."""
SHARP = 20.0
"""A cosine of 1, as a logit of the code that an encoder names."""


def train_vq(world: World, recipe: VideoRecipe, folder: Path, device: str, say: Say) -> LlamaGenVQ:
    """The VQ of the denoising model: absolute and squared error of pixels, and the codebook's loss.

    Args:
        world: What it learns from.
        recipe: Sizes and lengths.
        folder: For checkpoints.
        device: Where.
        say: Where progress lines go.
    """
    vq = _vq(recipe.codes, recipe.seed, device)
    batch_at = _pictures(world, recipe, device)
    restarts = Restarts(vq, RESTART, recipe.vq_steps // 2, recipe.seed)

    def loss_of(model: nn.Module, batch: tuple[int, Tensor]) -> Tensor:
        step, pictures = batch
        restarts.before(step, pictures)
        made, quantised = model(pictures)
        restarts.after(quantised.codes)
        return _error(made, pictures) + quantised.loss.float()

    fit(vq, batch_at, loss_of, LoopOptions(recipe.vq_steps, 1e-3, weight_decay=0.0), folder, say)
    return vq


def train_coarse_vq(world: World, recipe: VideoRecipe, folder: Path, device: str, say: Say) -> LlamaGenVQ:
    """The VQ of the token model: its encoder learns to name clusters of patches, its decoder what they look like.

    Both learn with the clusters themselves, not with what the encoder takes them for. Arguments as of `train_vq`.
    """
    vq = _vq(recipe.token_codes, recipe.seed, device, local_decoder=True)
    batch_at = _pictures(world, recipe, device)
    seen = world.frames[~world.held_out][:, ::10].flatten(0, 1)
    clusters = Clusters.of(pixels(seen), recipe.token_codes, recipe.seed)

    def loss_of(model: nn.Module, batch: tuple[int, Tensor]) -> Tensor:
        _, pictures = batch
        named = clusters.codes(pictures.cpu()).to(device)
        cells = F.normalize(model.quant_conv(model.encoder(pictures)).float(), dim=1)
        alike = torch.einsum("bdrc,kd->bkrc", cells, model.quantize.entries)
        return _error(model.decode(named), pictures) + F.cross_entropy(SHARP * alike, named)

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
    """The frames of a step."""
    frames = world.frames[~world.held_out].flatten(0, 1)

    def batch_at(step: int) -> tuple[int, Tensor]:
        g = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
        return step, pixels(frames[torch.randint(len(frames), (recipe.vq_batch,), generator=g)]).to(device)

    return batch_at


def _error(made: Tensor, pictures: Tensor) -> Tensor:
    error = made.float() - pictures
    return error.abs().mean() + error.square().mean()
