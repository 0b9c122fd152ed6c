"""Train all models, and write folders that `NextFramePipeline.from_pretrained` reads, with facts and recorded clips."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL
from torch import Tensor

from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec.training.work import claimed
from mmspec_video.codec import Codes, KLLatents
from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.models.students import StudentAdapter
from mmspec_video.models.token_world import TokenWorldModel
from mmspec_video.pipeline import NextFramePipeline
from mmspec_video.recorded import CLIPS, DENOISED, STUDENT, TOKENS, TOUR_CLIP
from mmspec_video.training.student import consistency_loss
from tools.train.pictures.data import pixels
from tools.train.pictures.ship import ship
from tools.train.video.autoencoders import train_autoencoder, train_vq
from tools.train.video.coded import CodedEpisodes, encoded
from tools.train.video.denoising import flow_loss, noisy, paths, train_dit, train_student
from tools.train.video.recipe import Say, VideoRecipe
from tools.train.video.tokens import next_code, sequence, train_tokens
from tools.train.video.walking import ACTIONS
from tools.train.video.world import FPS, HELD_OUT, World, recorded, toured

CLIP, KEPT = 32, 4
"""Frames of a recorded clip, and how many clips are shipped."""
BATCHES = 8
"""Held-out batches that facts are averaged over."""


def train_and_ship(recipe: VideoRecipe, out: Path, work: Path, device: str, distill: bool, say: Say) -> None:
    """Train everything, resuming where it stopped, and write `<out>/four-courts-tokens` and `<out>/four-courts`.

    Args:
        recipe: Sizes and lengths.
        out: Folder that receives the finished models.
        work: Folder for frames and checkpoints; delete it to start anew.
        device: Device to train on.
        distill: Train the student, too.
        say: Receives progress lines.

    Raises:
        ValueError: Panda3D is not installed; `work` is used by another run, or holds another recipe's work; or training
            cannot go on.
    """

    def named(what: str) -> Say:
        return lambda line: say(f"{what}: {line}")

    with claimed(work, asdict(recipe)):
        size = recipe.height, recipe.width
        world = recorded(work, recipe.episodes, recipe.length, size, recipe.seed, say)

        vq = train_vq(world, recipe, work / "vq", device, named("vq"))
        vae = train_autoencoder(world, recipe, work / "vae", device, named("vae"))
        codes = encoded(Codes(vq, recipe.grid[0]).encode, vq, world, work / "vq", device)
        latents = encoded(KLLatents(vae).encode, vae, world, work / "vae", device)
        tokens = train_tokens(codes, recipe, work, device, named("tokens"))
        dit = train_dit(latents, recipe, work, device, named("dit"))
        adapter = train_student(latents, dit, recipe, work, named("student")) if distill else None
        facts = {
            TOKENS: facts_of_tokens(world, codes, vq, tokens, recipe, device),
            DENOISED: facts_of_dit(world, latents, vae, dit, adapter, recipe, device),
        }

        def also(folder: Path) -> None:
            write_clips(folder / CLIPS, world)
            save_clips(folder / TOUR_CLIP, *toured(size))
            if adapter is not None:
                adapter.half().save_pretrained(folder / STUDENT)

        for name, model, codec in ((TOKENS, tokens, vq), (DENOISED, dit, vae)):
            pipe = NextFramePipeline(model.half(), codec.half(), ACTIONS, FPS)
            ship(pipe, facts[name], out / name, **({"also": also} if name == DENOISED else {}))
            say(f"{name}: {facts[name]}")


@torch.no_grad()
def facts_of_tokens(
    world: World, clips: CodedEpisodes, vq: LlamaGenVQ, tokens: TokenWorldModel, recipe: VideoRecipe, device: str
) -> dict[str, Any]:
    """Facts for the token model's card: parameters, recipe, and losses of held-out episodes."""
    clips = _held_out(world, clips)

    def nats(batch: int) -> Tensor:
        units = sequence(*clips.batch(recipe.token_batch, recipe.frames, batch, device), recipe.codes)
        return next_code(tokens, units, units)

    facts = {"parameters": _count(tokens, vq), "held_out_nats_per_code": _mean(nats)}
    facts["codes_used"] = len(clips.frames[~world.held_out].unique())
    return facts | _facts(world, lambda pictures: vq(pictures)[0], recipe, device)


@torch.no_grad()
def facts_of_dit(
    world: World,
    clips: CodedEpisodes,
    vae: AutoencoderKL,
    dit: NextFrameDiT,
    adapter: StudentAdapter | None,
    recipe: VideoRecipe,
    device: str,
) -> dict[str, Any]:
    """Facts for the card of the denoising model and its student."""
    clips = _held_out(world, clips)

    rows = recipe.dit_batch
    error = _mean(lambda i: flow_loss(dit, noisy(clips, recipe, rows, i, device)))
    facts = {"parameters": _count(dit, vae), "held_out_velocity_error": error}
    if adapter is not None:
        student = adapter.student(dit)
        facts["student_parameters"] = _count(adapter)
        facts["held_out_student_gap"] = _mean(
            lambda i: consistency_loss(student, dit, paths(clips, recipe, rows, i, device))
        )
    return facts | _facts(world, lambda pictures: vae(pictures).sample, recipe, device)


def _facts(world: World, reconstructed: Callable[[Tensor], Tensor], recipe: VideoRecipe, device: str) -> dict[str, Any]:
    """Quality of an autoencoder, and the recipe of everything."""
    images = pixels(world.frames[world.held_out][:, ::10].flatten(0, 1)).to(device)
    made = torch.cat([reconstructed(part) for part in images.split(64)])
    return {
        "reconstruction_psnr_db": round(float(10 * (4 / (made - images).square().mean()).log10()), 2),
        "held_out": f"every {HELD_OUT}th episode",
        "recipe": asdict(recipe),
    }


def _held_out(world: World, clips: CodedEpisodes) -> CodedEpisodes:
    return replace(clips, chosen=world.held_out.nonzero()[:, 0])


def write_clips(file: Path, world: World) -> None:
    """Write held-out clips: frames and actions."""
    chosen = world.held_out.nonzero()[:KEPT, 0]
    frames = world.frames[chosen, :CLIP].permute(0, 1, 3, 4, 2).numpy()
    actions = world.actions[chosen, : frames.shape[1] - 1].numpy().astype(np.uint8)
    save_clips(file, frames, actions)


def save_clips(file: Path, frames: np.ndarray, actions: np.ndarray) -> None:
    """Write clips that `mmspec_video.recorded.recorded` reads."""
    np.savez_compressed(file, frames=frames, actions=actions)


def _mean(measured: Callable[[int], Tensor]) -> float:
    return round(sum(float(measured(i)) for i in range(BATCHES)) / BATCHES, 4)


def _count(*models: torch.nn.Module) -> int:
    return sum(p.numel() for model in models for p in model.parameters())
