"""Recipe `video`: the denoising model of latents, and its consistency student (`--distill`)."""

from pathlib import Path

import torch
from torch import Tensor, nn

from mmspec.training.loop import LoopOptions, fit
from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.models.students import StudentAdapter
from mmspec_video.training.student import Batch, StudentRecipe, distilled, first_unknown, on_paths
from tools.train.video.coded import CodedEpisodes
from tools.train.video.recipe import Say, VideoRecipe
from tools.train.video.walking import ACTIONS

CONTEXT_TIME = 0.1
"""Time of finished frames: slightly noisy, so that the model tolerates small faults of its own earlier frames."""
TIMES = 1.0, 1.5
"""Mean and deviation of a frame's time before the logistic function. Where much is noise, the model has to tell a frame
from the one before and the action; where little is, it sees where the player stands, and learns nothing of actions."""


def train_dit(clips: CodedEpisodes, recipe: VideoRecipe, work: Path, device: str, say: Say) -> NextFrameDiT:
    """Train the model by flow matching with a time per frame, mostly logit-normal (arXiv 2403.03206, § 3.1)."""
    torch.manual_seed(recipe.seed + 2)
    model = NextFrameDiT(
        recipe.channels, *recipe.grid, len(ACTIONS), patch=1, dim=144, depth=6, heads=3, frames=recipe.frames,
        steps=8, context_time=CONTEXT_TIME,
    ).to(device)  # fmt: skip

    def batch_at(step: int) -> Batch:
        return noisy(clips, recipe, recipe.dit_batch, recipe.batch_seed(2, step), device)

    options = LoopOptions(recipe.dit_steps, 2e-3, warmup=100, hidden="blocks.")
    fit(model, batch_at, flow_loss, options, work / "dit", say)
    return model


def train_student(
    clips: CodedEpisodes, teacher: NextFrameDiT, recipe: VideoRecipe, work: Path, say: Say
) -> StudentAdapter:
    """Train a student's low-rank differences, as `mmspec train student` does."""

    def batch_at(step: int) -> Batch:
        return paths(clips, recipe, recipe.student_batch, recipe.batch_seed(3, step), str(teacher.device))

    sizes = StudentRecipe(recipe.student_steps, recipe.student_batch, recipe.rank, recipe.jumps, seed=recipe.seed + 3)
    return distilled(teacher, batch_at, sizes, work / "student", say)


def paths(clips: CodedEpisodes, recipe: VideoRecipe, rows: int, seed: int, device: str) -> Batch:
    """Random clips on the paths of a student."""
    frames, after = clips.batch(rows, recipe.frames + 1, seed, device)
    return on_paths(frames[:, 1:], after[:, :-1], len(ACTIONS), seed)


@torch.no_grad()
def noisy(clips: CodedEpisodes, recipe: VideoRecipe, rows: int, seed: int, device: str) -> Batch:
    """Random clips with noise and logit-normal times.

    These are rarely near 0, where the finished frames of inference are. So a random share of each clip's frames, never
    the last one, gets the time of finished frames, and 0 to 2 times its noise.
    """
    frames, after = clips.batch(rows, recipe.frames + 1, seed, device)
    g = torch.Generator().manual_seed(seed)
    latents, actions = frames[:, 1:], first_unknown(after[:, :-1], len(ACTIONS), g)
    noise = torch.randn(latents.shape, generator=g).to(device)
    mean, deviation = TIMES
    time = (mean + deviation * torch.randn(latents.shape[:2], generator=g)).sigmoid()
    finished = torch.rand(latents.shape[:2], generator=g) < torch.rand(rows, 1, generator=g)
    finished[:, -1] = False
    time[finished] = CONTEXT_TIME
    faults = torch.where(finished, 2 * torch.rand(latents.shape[:2], generator=g), 1.0)
    noise = torch.lerp(latents, noise, faults[..., None, None, None].to(device))
    return latents, actions, noise, time.to(device)


def flow_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean squared error of the velocity, noise minus frame, over frames that are not finished."""
    latents, actions, noise, time = batch
    mixed = torch.lerp(latents, noise, time[..., None, None, None])
    error = (model(mixed, time, actions).float() - (noise - latents)).square().mean((2, 3, 4))
    counted = (time > CONTEXT_TIME).float()
    return (error * counted).sum() / counted.sum()
