"""What was trained, as folders that `NextFramePipeline.from_pretrained` reads, with facts and clips beside it."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmspec.models.vq import LlamaGenVQ
from mmspec.pictures.data import pixels
from mmspec.pictures.ship import ship
from mmspec_video.models.adapter import StudentAdapter
from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.models.token_world import TokenWorldModel
from mmspec_video.pipeline import NextFramePipeline
from mmspec_video.train.denoising import LEVELS, consistency_loss, flow_loss, noisy, train_dit, train_student
from mmspec_video.train.recipe import Clips, Say, VideoRecipe, encoded, next_code, sequence, train_tokens, train_vq
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
        ValueError: ViZDoom is not installed, or `work` holds other frames.
    """
    size = recipe.height, recipe.width
    world = recorded(work, recipe.episodes, recipe.length, size, recipe.seed, say)
    vq = train_vq(world, recipe, work, device, partial(_said, say, "vq"))
    clips = encoded(vq, world, work, device)
    tokens = train_tokens(clips, vq, recipe, work, device, partial(_said, say, "tokens"))
    dit = train_dit(clips, vq, recipe, work, device, partial(_said, say, "dit"))
    adapter = None
    if distill:
        adapter = train_student(clips, vq, dit, recipe, work, device, partial(_said, say, "student"))
    facts = facts_of(world, clips, vq, tokens, dit, adapter, recipe, device)

    def also(folder: Path) -> None:
        write_clips(folder / CLIPS, world)
        if adapter is not None:
            adapter.half().save_pretrained(folder / STUDENT)

    for name, model in ((TOKENS, tokens), (DENOISED, dit)):
        pipe = NextFramePipeline(model.half(), vq.half(), ACTIONS, FPS)
        more = {"also": also} if name == DENOISED else {}
        ship(pipe, facts[name] | facts["both"], out / name, **more)
        say(f"{name}: {facts[name]}")


@torch.no_grad()
def facts_of(
    world: World,
    clips: Clips,
    vq: LlamaGenVQ,
    tokens: TokenWorldModel,
    dit: NextFrameDiT,
    adapter: StudentAdapter | None,
    recipe: VideoRecipe,
    device: str,
) -> dict[str, dict[str, Any]]:
    """What the cards say: parameters, recipe, and how held-out episodes fare; `reconstruction_psnr_db` is the VQ's."""
    held = Clips(clips.codes, clips.actions, world.held_out.nonzero()[:, 0])
    images = pixels(world.frames[world.held_out][:, ::10].flatten(0, 1)).to(device)
    vq.eval()
    made = torch.cat([vq(part)[0] for part in images.split(64)])

    def units(batch: int) -> tuple[Tensor, Tensor]:
        true = sequence(*held.batch(recipe.token_batch, recipe.frames, batch, device), recipe.codes)
        return true, true

    def noise(batch: int, levels: int | None = None) -> Any:
        return noisy(held, vq, recipe, recipe.dit_batch, batch, device, levels)

    denoised: dict[str, Any] = {"held_out_velocity_error": _mean(lambda i: flow_loss(dit, noise(i)))}
    if adapter is not None:
        student = adapter.student(dit)
        denoised["student_parameters"] = sum(p.numel() for p in adapter.parameters())
        denoised["held_out_student_gap"] = _mean(lambda i: consistency_loss(student, dit, noise(i, LEVELS)))
    both = {
        "reconstruction_psnr_db": round(float(10 * (4 / (made - images).square().mean()).log10()), 2),
        "codes_used": len(held.codes[held.seen].unique()),
        "held_out": f"every {HELD_OUT}th episode",
        "recipe": asdict(recipe),
    }
    parameters = {"parameters": _count(tokens, vq)}, {"parameters": _count(dit, vq)}
    coded = {"held_out_nats_per_code": _mean(lambda i: next_code(tokens, units(i)))}
    return {"both": both, TOKENS: parameters[0] | coded, DENOISED: parameters[1] | denoised}


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
