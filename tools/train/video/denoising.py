"""Recipe `video`: the denoising model of latents, and its consistency student (`--distill`)."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.training.loop import LoopOptions, fit
from mmspec_video.models.keys import LayerKeys, current
from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.models.students import StudentAdapter
from tools.train.video.adapting import adaptable, adapter_of
from tools.train.video.coded import CodedEpisodes
from tools.train.video.recipe import Say, VideoRecipe
from tools.train.video.walking import ACTIONS

CONTEXT_TIME = 0.1
"""Time of finished frames: slightly noisy, so that the model tolerates small faults of its own earlier frames."""
TIMES = 1.0, 1.5
"""Mean and deviation of a frame's time before the logistic function. Where much is noise, the model has to tell a frame
from the one before and the action; where little is, it sees where the player stands, and learns nothing of actions."""
LEVELS = 16
"""Number of times on a path; the student learns to agree with itself at neighbouring ones."""
UNKNOWN_FIRST = 0.5
"""Probability that a clip's first action is replaced by "unknown", as at the start of a call."""

Batch = tuple[Tensor, Tensor, Tensor, Tensor]
"""Latents `[row, frame, …]`, actions that led to the frames `[row, frame]`, noise, times `[row, frame]`."""


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
    clips: CodedEpisodes, teacher: NextFrameDiT, recipe: VideoRecipe, work: Path, device: str, say: Say
) -> StudentAdapter:
    """Train a student's low-rank differences by consistency distillation (arXiv 2303.01469, Algorithm 2).

    Every frame is denoised given clean earlier frames, as in inference.
    """
    torch.manual_seed(recipe.seed + 3)
    teacher = teacher.eval().requires_grad_(False)
    model = adaptable(teacher, recipe.rank).to(device)

    def batch_at(step: int) -> Batch:
        return noisy(clips, recipe, recipe.student_batch, recipe.batch_seed(3, step), device, levels=LEVELS)

    def loss_of(student: nn.Module, batch: Batch) -> Tensor:
        return consistency_loss(student, teacher, batch)

    options = LoopOptions(recipe.student_steps, 1e-3, warmup=50, weight_decay=0.0)
    fit(model, batch_at, loss_of, options, work / "student", say)
    return adapter_of(model, recipe.jumps)


@torch.no_grad()
def noisy(
    clips: CodedEpisodes, recipe: VideoRecipe, rows: int, seed: int, device: str, levels: int | None = None
) -> Batch:
    """Random clips with noise and times; with `levels`, times are `1 / levels … 1`, else logit-normal.

    Logit-normal times are rarely near 0, where the finished frames of inference are. So, without `levels`, a random
    share of each clip's frames, never the last one, gets the time of finished frames, and 0 to 2 times its noise.
    """
    frames, after = clips.batch(rows, recipe.frames + 1, seed, device)
    latents, actions = frames[:, 1:], after[:, :-1].clone()
    g = torch.Generator().manual_seed(seed)
    hidden = torch.rand(rows, generator=g).to(device) < UNKNOWN_FIRST
    actions[:, 0] = torch.where(hidden, len(ACTIONS), actions[:, 0])
    noise = torch.randn(latents.shape, generator=g).to(device)
    if levels is None:
        mean, deviation = TIMES
        time = (mean + deviation * torch.randn(latents.shape[:2], generator=g)).sigmoid()
        finished = torch.rand(latents.shape[:2], generator=g) < torch.rand(rows, 1, generator=g)
        finished[:, -1] = False
        time[finished] = CONTEXT_TIME
        faults = torch.where(finished, 2 * torch.rand(latents.shape[:2], generator=g), 1.0)
        noise = torch.lerp(latents, noise, faults[..., None, None, None].to(device))
    else:
        time = torch.randint(1, levels + 1, latents.shape[:2], generator=g) / levels
    return latents, actions, noise, time.to(device)


def flow_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean squared error of the velocity, noise minus frame, over frames that are not finished."""
    latents, actions, noise, time = batch
    mixed = torch.lerp(latents, noise, time[..., None, None, None])
    error = (model(mixed, time, actions).float() - (noise - latents)).square().mean((2, 3, 4))
    counted = (time > CONTEXT_TIME).float()
    return (error * counted).sum() / counted.sum()


def consistency_loss(student: nn.Module, teacher: NextFrameDiT, batch: Batch) -> Tensor:
    """Pseudo-Huber distance (arXiv 2310.14189, eq. 7) of the student's frames at two times of one path.

    The path is the teacher's: one Euler step leads from the later to the earlier time.
    """
    latents, actions, noise, time = batch
    wide = time[..., None, None, None]
    mixed, earlier = torch.lerp(latents, noise, wide), (time - 1 / LEVELS).clamp(min=0)
    with torch.no_grad():
        velocity = velocities_after_clean(teacher, latents, mixed, time, actions)
        before = mixed - (wide - earlier[..., None, None, None]) * velocity
        wanted = predicted(student, latents, before, earlier, actions)  # at time 0: the path's end
    gap = (predicted(student, latents, mixed, time, actions) - wanted).flatten(2)
    soft = 0.00054 * gap.shape[2] ** 0.5
    return ((gap.square().sum(-1) + soft**2).sqrt() - soft).mean()


def predicted(model: nn.Module, latents: Tensor, mixed: Tensor, time: Tensor, actions: Tensor) -> Tensor:
    """The clean frames that a consistency model predicts: `x - t · v`."""
    return mixed - time[..., None, None, None] * velocities_after_clean(model, latents, mixed, time, actions)


def velocities_after_clean(model: Any, latents: Tensor, mixed: Tensor, time: Tensor, actions: Tensor) -> Tensor:
    """Velocities of noisy frames, each given the clean frames before it: two passes for all frames."""
    rows, frames = time.shape
    clean = [LayerKeys() for _ in model.blocks]
    with torch.no_grad():
        model(latents, torch.full_like(time, CONTEXT_TIME), actions, keys=clean)
    position = torch.arange(frames, device=time.device).expand(rows, -1)
    earlier = torch.ones(frames, frames, dtype=torch.bool, device=time.device).tril(-1)
    itself = torch.eye(frames, dtype=torch.bool, device=time.device)
    seen = torch.cat([earlier, itself], 1).expand(rows, -1, -1)
    return model(mixed, time, actions, position, seen, [LayerKeys(pair) for pair in current(clean)]).float()
