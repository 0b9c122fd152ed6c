"""What was trained, as folders that `NextFramePipeline.from_pretrained` reads, with facts and clips beside it."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
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
from mmspec_video.train.coded import Clips, encoded
from mmspec_video.train.denoising import LEVELS, consistency_loss, flow_loss, noisy, train_dit, train_student
from mmspec_video.train.recipe import Say, VideoRecipe
from mmspec_video.train.tokens import next_code, sequence, train_tokens
from mmspec_video.train.vqs import train_coarse_vq, train_vq
from mmspec_video.train.world import ACTIONS, FPS, HELD_OUT, World, recorded

TOKENS, DENOISED, STUDENT = "my-way-home-tokens", "my-way-home", "student"
"""Folders; the student's is inside of its teacher's, and so are the clips, which serve all."""
CLIPS = "clips.npz"
CLIP, KEPT = 32, 4
"""Frames of a held-out clip, and how many of them are shipped."""
BATCHES = 8
"""Held-out batches that facts are averaged over."""


def train_and_ship(recipe: VideoRecipe, out: Path, work: Path, device: str, distill: bool, say: Say) -> None:
    """Train everything, resuming where it stopped, and write `<out>/my-way-home-tokens` and `<out>/my-way-home`.

    Args:
        recipe: Sizes and lengths.
        out: Folder that receives the finished models.
        work: Folder for frames and checkpoints; delete it to start anew.
        device: Where to train.
        distill: Train the student, too.
        say: Where progress lines go.

    Raises:
        ValueError: ViZDoom is not installed; `work` is another run's, or of another recipe; or training cannot go on.
    """
    size = recipe.height, recipe.width
    with claimed(work, asdict(recipe)):
        world = recorded(work, recipe.episodes, recipe.length, size, recipe.seed, say)

        def coded(train: Callable[..., LlamaGenVQ], name: str) -> tuple[LlamaGenVQ, Clips]:
            vq = train(world, recipe, work / name, device, partial(_said, say, name))
            return vq, encoded(vq, world, work / name, device)

        coarse_vq, coarse = coded(train_coarse_vq, "token-vq")
        vq, clips = coded(train_vq, "vq")
        tokens = train_tokens(coarse, recipe, work, device, partial(_said, say, "tokens"))
        dit = train_dit(clips, vq, recipe, work, device, partial(_said, say, "dit"))
        adapter = None
        if distill:
            adapter = train_student(clips, vq, dit, recipe, work, device, partial(_said, say, "student"))
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
    world: World, clips: Clips, vq: LlamaGenVQ, tokens: TokenWorldModel, recipe: VideoRecipe, device: str
) -> dict[str, Any]:
    """What the token model's card says: parameters, recipe, and how held-out episodes fare."""
    held = _held_out(world, clips)

    def nats(batch: int) -> Tensor:
        units = sequence(*held.batch(recipe.token_batch, recipe.frames, batch, device), recipe.token_codes)
        return next_code(tokens, units, units)

    facts = {"parameters": _count(tokens, vq), "held_out_nats_per_code": _mean(nats)}
    return facts | _of_vq(world, clips, vq, recipe, device)


@torch.no_grad()
def facts_of_dit(
    world: World,
    clips: Clips,
    vq: LlamaGenVQ,
    dit: NextFrameDiT,
    adapter: StudentAdapter | None,
    recipe: VideoRecipe,
    device: str,
) -> dict[str, Any]:
    """The same of the denoising model and of its student."""
    held = _held_out(world, clips)

    def noise(batch: int, levels: int | None = None) -> Any:
        return noisy(held, vq, recipe, recipe.dit_batch, batch, device, levels)

    error = _mean(lambda i: flow_loss(dit, noise(i)))
    facts = {"parameters": _count(dit, vq), "held_out_velocity_error": error}
    if adapter is not None:
        student = adapter.student(dit)
        facts["student_parameters"] = sum(p.numel() for p in adapter.parameters())
        facts["held_out_student_gap"] = _mean(lambda i: consistency_loss(student, dit, noise(i, LEVELS)))
    return facts | _of_vq(world, clips, vq, recipe, device)


def _of_vq(world: World, clips: Clips, vq: LlamaGenVQ, recipe: VideoRecipe, device: str) -> dict[str, Any]:
    """How good the codes are, and what everything was trained with."""
    images = pixels(world.frames[world.held_out][:, ::10].flatten(0, 1)).to(device)
    vq.eval()
    made = torch.cat([vq(part)[0] for part in images.split(64)])
    return {
        "reconstruction_psnr_db": round(float(10 * (4 / (made - images).square().mean()).log10()), 2),
        "codes_used": len(clips.codes[clips.seen].unique()),
        "held_out": f"every {HELD_OUT}th episode",
        "recipe": asdict(recipe),
    }


def _held_out(world: World, clips: Clips) -> Clips:
    return Clips(clips.codes, clips.actions, world.held_out.nonzero()[:, 0])


def write_clips(file: Path, world: World) -> None:
    """Held-out clips: frames, what the player did, and so what the simulator answered."""
    chosen = world.held_out.nonzero()[:KEPT, 0]
    frames = world.frames[chosen, :CLIP].permute(0, 1, 3, 4, 2).numpy()
    actions = world.actions[chosen, : frames.shape[1] - 1].numpy().astype(np.uint8)
    np.savez_compressed(file, frames=frames, actions=actions)


def _mean(measured: Callable[[int], Tensor]) -> float:
    return round(sum(float(measured(i)) for i in range(BATCHES)) / BATCHES, 4)


def _count(*models: torch.nn.Module) -> int:
    return sum(p.numel() for model in models for p in model.parameters())


def _said(say: Say, what: str, line: str) -> None:
    say(f"{what}: {line}")
