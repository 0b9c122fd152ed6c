"""Train all models, and write folders that `NextFramePipeline.from_pretrained` reads, with facts and recorded clips."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmspec.kits.pictures.data import pixels
from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec.kits.pictures.ship import ship
from mmspec.training.work import claimed
from mmspec_video.models.adapter import StudentAdapter
from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.models.token_world import TokenWorldModel
from mmspec_video.pipeline import NextFramePipeline
from mmspec_video.train.coded import CodedEpisodes, encoded
from mmspec_video.train.denoising import LEVELS, Batch, consistency_loss, flow_loss, noisy, train_dit, train_student
from mmspec_video.train.recipe import CLIPS, DENOISED, STUDENT, TOKENS, Say, VideoRecipe
from mmspec_video.train.tokens import next_code, sequence, train_tokens
from mmspec_video.train.vqs import train_coarse_vq, train_vq
from mmspec_video.train.world import ACTIONS, FPS, HELD_OUT, World, recorded

CLIP, KEPT = 32, 4
"""Frames of a recorded clip, and how many clips are shipped."""
BATCHES = 8
"""Held-out batches that facts are averaged over."""


def train_and_ship(recipe: VideoRecipe, out: Path, work: Path, device: str, distill: bool, say: Say) -> None:
    """Train everything, resuming where it stopped, and write `<out>/my-way-home-tokens` and `<out>/my-way-home`.

    Args:
        recipe: Sizes and lengths.
        out: Folder that receives the finished models.
        work: Folder for frames and checkpoints; delete it to start anew.
        device: Device to train on.
        distill: Train the student, too.
        say: Receives progress lines.

    Raises:
        ValueError: ViZDoom is not installed; `work` is used by another run, or holds another recipe's work; or training
            cannot go on.
    """

    def named(what: str) -> Say:
        return lambda line: say(f"{what}: {line}")

    with claimed(work, asdict(recipe)):
        size = recipe.height, recipe.width
        world = recorded(work, recipe.episodes, recipe.length, size, recipe.seed, say)

        def coded(train: Callable[..., LlamaGenVQ], name: str) -> tuple[LlamaGenVQ, CodedEpisodes]:
            vq = train(world, recipe, work / name, device, named(name))
            return vq, encoded(vq, world, work / name, device)

        coarse_vq, coarse = coded(train_coarse_vq, "token-vq")
        vq, clips = coded(train_vq, "vq")
        tokens = train_tokens(coarse, recipe, work, device, named("tokens"))
        dit = train_dit(clips, vq, recipe, work, device, named("dit"))
        adapter = train_student(clips, vq, dit, recipe, work, device, named("student")) if distill else None
        facts = {
            TOKENS: facts_of_tokens(world, coarse, coarse_vq, tokens, recipe, device),
            DENOISED: facts_of_dit(world, clips, vq, dit, adapter, recipe, device),
        }

        def also(folder: Path) -> None:
            write_clips(folder / CLIPS, world)
            if adapter is not None:
                adapter.half().save_pretrained(folder / STUDENT)

        for name, model, codec in ((TOKENS, tokens, coarse_vq), (DENOISED, dit, vq)):
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
        units = sequence(*clips.batch(recipe.token_batch, recipe.frames, batch, device), recipe.token_codes)
        return next_code(tokens, units, units)

    facts = {"parameters": _count(tokens, vq), "held_out_nats_per_code": _mean(nats)}
    return facts | _facts_of_vq(world, clips, vq, recipe, device)


@torch.no_grad()
def facts_of_dit(
    world: World,
    clips: CodedEpisodes,
    vq: LlamaGenVQ,
    dit: NextFrameDiT,
    adapter: StudentAdapter | None,
    recipe: VideoRecipe,
    device: str,
) -> dict[str, Any]:
    """Facts for the card of the denoising model and its student."""
    clips = _held_out(world, clips)

    def noise(batch: int, levels: int | None = None) -> Batch:
        return noisy(clips, vq, recipe, recipe.dit_batch, batch, device, levels)

    error = _mean(lambda i: flow_loss(dit, noise(i)))
    facts = {"parameters": _count(dit, vq), "held_out_velocity_error": error}
    if adapter is not None:
        student = adapter.student(dit)
        facts["student_parameters"] = _count(adapter)
        facts["held_out_student_gap"] = _mean(lambda i: consistency_loss(student, dit, noise(i, LEVELS)))
    return facts | _facts_of_vq(world, clips, vq, recipe, device)


def _facts_of_vq(
    world: World, clips: CodedEpisodes, vq: LlamaGenVQ, recipe: VideoRecipe, device: str
) -> dict[str, Any]:
    """Quality of the codes, and the recipe of everything."""
    images = pixels(world.frames[world.held_out][:, ::10].flatten(0, 1)).to(device)
    vq.eval()
    reconstructed = torch.cat([vq(part)[0] for part in images.split(64)])
    return {
        "reconstruction_psnr_db": round(float(10 * (4 / (reconstructed - images).square().mean()).log10()), 2),
        "codes_used": len(clips.codes[~world.held_out].unique()),
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
    np.savez_compressed(file, frames=frames, actions=actions)


def _mean(measured: Callable[[int], Tensor]) -> float:
    return round(sum(float(measured(i)) for i in range(BATCHES)) / BATCHES, 4)


def _count(*models: torch.nn.Module) -> int:
    return sum(p.numel() for model in models for p in model.parameters())
